"""Metrics below a cell: live while it is busy, a picture at its end, for every launcher.

The kernel of these tests has no front end that draws widgets, so it shows pictures; what the page
makes of a widget's state is tested in a browser.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbconvert import HTMLExporter, LatexExporter

from nbdist.widgets.live_metrics import MIME
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.waiting import allowed
from tests.test_metrics import unpacked

if TYPE_CHECKING:
    from tests.conftest import KernelFactory
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

ROOT = Path(__file__).parent.parent
PNG = b"\x89PNG"
ALL_LOGGED = """
import nbdist
def all_logged(marker):
    "Wait for the rank that has not failed: nothing is to break it off before it has logged."
    import os, time
    while not os.path.exists(marker):
        time.sleep(0.01)
    return True
"""
ENGINES = "-np 2 --backend ddp --launcher engines"
LAUNCHERS = ("engines", "torchrun", pytest.param("horovodrun", marks=pytest.mark.horovod))


def flags(launcher: str) -> str:
    """Return the flags of a launcher's cell."""
    backend = "horovod" if launcher == "horovodrun" else "ddp"
    return f"-np 2 --backend {backend} --launcher {launcher}"


def picture(cell: Cell) -> tuple[str, str]:
    """Return the words and the HTML of the only picture a cell shows."""
    (shown,) = (out for out in cell.outputs if MIME in out.data)
    image = re.search(r'src="data:image/png;base64,([^"]*)"', shown.data["text/html"])
    assert image is not None
    assert base64.b64decode(image[1]).startswith(PNG)
    assert "image/png" not in shown.data, "a notebook holds it once"
    return shown.text, shown.data["text/html"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_cell_draws_itself_while_it_is_busy(
    notebook: Kernel, launcher: str, tmp_path: Path
) -> None:
    kernel, go = notebook, tmp_path / "go"
    kernel.run(f"import pathlib, nbdist\ngo = pathlib.Path({str(go)!r})")
    cell = kernel.start(
        f"%%distributed {flags(launcher)}\n"
        "import os, time\n"
        "me = int(os.environ['RANK'] if 'RANK' in os.environ else os.environ['HOROVOD_RANK'])\n"
        "for step in nbdist.progress(range(10), 'steps', samples=32):\n"
        "    nbdist.log({'train/loss': 1 / (step + 1) + me}, step=step)\n"
        "    while step == 5 and not go.exists(): time.sleep(0.05)\n"
        "print('end')"
    )
    kernel.until(lambda: any("train/loss: 0.6667" in out.text for out in cell.events), 60, cell)
    assert not cell.done
    kernel.until(lambda: any("steps: 5 of 10" in out.text for out in cell.events), 60, cell)
    go.touch()
    kernel.wait(60, cell)
    words, html = picture(cell)
    assert "done after" in words
    assert "steps: 10 of 10" in words
    assert "train/loss: 0.6 (min 0.1, max 2, 20 points)" in words
    assert '<img alt="Curves of train/loss"' in html
    assert ">2 ranks<" in html
    asked = kernel.run(
        "job = nbdist.jobs()[-1]\n"
        "loss = job.metrics['train/loss']\n"
        "print(loss.of(1).steps.tolist(), loss.of(0).values[0], sorted(job.pulses))"
    )
    assert asked.stdout == f"{list(range(10))} 1.0 [0, 1]\n"


def test_errors_and_interrupts_leave_the_picture(notebook: Kernel, tmp_path: Path) -> None:
    kernel = notebook
    kernel.run(f"{ALL_LOGGED}logged = {str(tmp_path / 'logged')!r}")
    failed = on_ranks(
        kernel,
        """
        for step in nbdist.progress(range(10), "steps"):
            nbdist.log(loss=step)
            if step == 7 and rank == 1 and all_logged(logged):
                raise ValueError("boom")
            elif step == 9:
                open(logged, "w").close()
        """,
        ENGINES,
        check=False,
    )
    words, html = picture(failed)
    assert "failed after" in words
    assert "(min 0, max 9, 18 points)" in words
    assert "ValueError in line 5" in html
    assert "Rank 1 failed: ValueError: boom" in failed.seen()
    stopped = kernel.start(
        "%%distributed\nimport time\nnbdist.log(loss=1)\nprint('there')\ntime.sleep(600)"
    )
    kernel.expect("there", cell=stopped)
    kernel.interrupt()
    kernel.wait(30, stopped)
    assert "interrupted after" in picture(stopped)[0]
    refused = on_ranks(kernel, "x = 1\nnbdist.log(loss=[1, 2])", check=False)
    assert "`loss` is a list [1, 2], and not one number" in refused.seen()
    assert "line 3" in refused.seen()
    assert not refused.mime(MIME)


def test_what_a_killed_rank_has_logged_is_there(notebook: Kernel, tmp_path: Path) -> None:
    notebook.run(f"{ALL_LOGGED}logged = {str(tmp_path / 'logged')!r}")
    cell = on_ranks(
        notebook,
        """
        import os, signal, time
        from nbdist.rank.metrics import logger
        for step in range(50):
            nbdist.log(loss=step)
        if rank == 0:
            open(logged, "w").close()
        elif all_logged(logged):
            while logger._recorder.waiting:
                time.sleep(0.01)
            with logger._recorder._lock:  # and what was taken from there is written
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        ENGINES,
        check=False,
    )
    words, html = picture(cell)
    assert "loss: 49 (min 0, max 49, 100 points)" in words
    assert "SIGKILL" in html
    on_ranks(notebook, "pass")  # which tells that the rank was restarted


def test_a_cell_without_metrics_shows_none(notebook: Kernel) -> None:
    cell = on_ranks(notebook, "import time\ntime.sleep(0.6)", ENGINES)
    assert cell.outputs == []
    notebook.run("import nbdist")
    assert "must begin with %%distributed" in notebook.run("nbdist.log(loss=1)").stderr
    assert notebook.run("print(nbdist.jobs()[-1].metrics)").stdout.endswith("nothing was logged>\n")


def test_background_cells_draw_in_their_own_cell(notebook: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    notebook.run(f"import pathlib, nbdist\ngo = pathlib.Path({str(go)!r})")
    cell = notebook.run(
        f"%%distributed {ENGINES} --async\nimport time\n"
        "nbdist.log(loss=3)\nwhile not go.exists(): time.sleep(0.05)\nnbdist.log(loss=1)"
    )
    notebook.until(lambda: any("loss: 3" in out.text for out in cell.events), 60, cell)
    go.touch()
    notebook.run("nbdist.jobs()[-1].wait()")
    notebook.until(lambda: "done after" in cell.text and "4 points" in cell.text, 60, cell)
    assert "loss: 1 (min 1, max 3, 4 points)" in picture(cell)[0]


def test_a_detached_job_shows_its_metrics_to_who_attaches(
    notebook: Kernel,
    start_kernel: KernelFactory,
    without_torch: dict[str, str],
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    notebook.run(f"import pathlib, nbdist\ngo = pathlib.Path({str(go)!r})")
    on_ranks(
        notebook,
        """
        import time
        for step in nbdist.progress(range(4), "steps"):
            nbdist.log(loss=step)
            while step == 2 and not go.exists():
                time.sleep(0.05)
        """,
        "-np 2 --launcher torchrun --detach",
    )
    second = start_kernel(notebook.home.name, env=without_torch)
    second.run("%load_ext nbdist\nimport nbdist")
    cell = second.start("%dist attach")
    second.until(lambda: any("loss: 2" in out.text for out in cell.events), 60, cell)
    second.until(lambda: any("steps: 2 of 4" in out.text for out in cell.events), 60, cell)
    go.touch()
    second.wait(60, cell)
    words, _ = picture(cell)
    assert "steps: 4 of 4" in words
    assert "loss: 3 (min 0, max 3, 8 points)" in words
    asked = second.run("print(nbdist.attach().metrics.last('loss'))")
    assert asked.stdout == "3.0\n"


def test_where_there_are_widgets_the_state_moves_and_stays(
    notebook: Kernel, tmp_path: Path
) -> None:
    pytest.importorskip("anywidget")
    notebook.run("import nbdist, os\nos.environ['NBDIST_METRICS'] = 'widget'")
    body = f"""
        import os, time
        for step in nbdist.progress(range(40), "steps"):
            nbdist.log(loss=step + rank)
            while step % 10 == 9 and not os.path.exists(f"{tmp_path}/seen{{step}}"):
                time.sleep(0.02)
        """
    cell = notebook.start(distributed(body, ENGINES))

    def wait_for(points: int) -> None:
        notebook.until(lambda: _points_of_last(cell) == points, 60, cell)

    for step in (9, 19, 29, 39):
        wait_for(2 * (step + 1))
        (tmp_path / f"seen{step}").touch()
    notebook.wait(60, cell)
    notebook.run("del os.environ['NBDIST_METRICS']")
    assert cell.ok, cell.seen()
    shown = next(out for out in cell.events if "view+json" in " ".join(out.data))
    assert "cannot draw metrics live" in shown.data["text/html"]
    states = [unpacked(part) for part in _states(cell)]
    assert len(states) >= 4
    points = [_points(state) for state in states]
    assert points == sorted(points)
    assert len(set(points)) > 3
    assert states[-2]["state"] == "running"
    assert states[-1]["state"] == "done", "for pages that were reloaded, which show it still"
    assert states[-1]["bars"][0]["label"] == "steps"
    assert "comm_close" not in [out.text for out in cell.events if out.kind == "comm"]
    assert "loss: 39.5 (min 0, max 40, 80 points)" in picture(cell)[0]


def _states(cell: Cell) -> list[bytes]:
    """Return the states a widget was given, in their order."""
    return [
        part for out in cell.events if out.kind == "comm" for part in out.data.get("buffers", ())
    ]


def _points_of_last(cell: Cell) -> int:
    states = _states(cell)
    return _points(unpacked(states[-1])) if states else 0


def _points(state: dict[str, Any]) -> int:
    return sum(curve["points"] for panel in state["panels"] for curve in panel["curves"])


def test_status_tells_what_ranks_take(notebook: Kernel) -> None:
    text = notebook.run("%dist status").stdout
    titles, first, *_ = text.splitlines()[1:]
    assert titles.split()[:8] == ["rank", "host", "pid", "device", "CPU", "memory", "GPU", "GPU"]
    assert " %" in first
    assert first.count("n/a") == 2 or "cuda" in first


@pytest.mark.starts_processes
def test_a_saved_notebook_keeps_the_picture_in_every_format(
    without_torch: dict[str, str], tmp_path: Path
) -> None:
    body = "import nbdist\nfor i in range(9): nbdist.log(loss=1 / (i + 1))"
    cells = [
        "%load_ext nbdist",
        distributed(body, "-np 2 --backend none"),
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, tmp_path / "book.ipynb")
    subprocess.run(
        [sys.executable, ROOT / "tools" / "run_notebook.py", "book.ipynb", "done.ipynb"],
        cwd=tmp_path,
        env=os.environ | without_torch,
        capture_output=True,
        timeout=allowed(120),
        check=True,
    )
    done = nbformat.read(tmp_path / "done.ipynb", as_version=4)
    (output,) = done.cells[1].outputs
    assert output.data.keys() == {"text/plain", "text/html", MIME}
    kept = output.data[MIME]
    state = unpacked(base64.b64decode(kept["state"]))
    assert (state["folder"], state["job"], state["state"]) == (kept["folder"], kept["job"], "done")
    assert state["panels"][0]["curves"][0]["points"] == 18
    assert "<script" not in output.data["text/html"]
    assert "<style" not in output.data["text/html"]
    page, _ = HTMLExporter().from_notebook_node(done)
    assert 'alt="Curves of loss"' in page
    assert "data:image/png;base64," in page
    latex, _ = LatexExporter().from_notebook_node(done)
    assert "loss: 0.1111 (min 0.1111, max 1, 18 points)" in latex
