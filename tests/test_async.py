"""Cells in the background: they return at once and stay in touch with their own output area."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.helpers.notebook import complete, distributed, on_ranks, plain
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import KernelFactory
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

ROOT = Path(__file__).parent.parent
HANDLE = "import nbdist\njob = nbdist.jobs()[-1]"


class Gate:
    """Holds ranks back until it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.wait = (
            "import pathlib, time\n"
            f"while not pathlib.Path({str(path)!r}).exists(): time.sleep(0.02)\n"
        )

    def open(self) -> None:
        """Let them go on."""
        self._path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Return a gate that is closed."""
    return Gate(tmp_path / "gate")


@pytest.fixture(autouse=True)
def _all_over(notebook: Kernel) -> Iterator[None]:
    """Leave no job to the next test."""
    yield
    notebook.run("import nbdist\nnbdist.cluster().interrupt()")
    notebook.run("for each in nbdist.cluster().jobs(): assert each.until_end(60)")


def start(kernel: Kernel, body: str, flags: str = "") -> Cell:
    """Run a cell in the background; return it when it is over, and its job is not."""
    cell = on_ranks(kernel, body, f"--async {flags}")
    kernel.run(HANDLE)
    return cell


def value(kernel: Kernel, expression: str) -> str:
    """Return the text of an expression in the notebook."""
    return kernel.run(f"print({expression})").stdout.strip()


def test_its_output_goes_on_in_its_cell_while_others_run(notebook: Kernel, gate: Gate) -> None:
    then = """
from IPython.display import HTML, display
from tqdm.auto import tqdm
handle = display(HTML("<b>first</b>"), display_id=True)
for _ in tqdm(range(3), desc="steps"): pass
handle.update(HTML("<b>second</b>"))
print("last")
rank + 70
"""
    cell = start(notebook, f"print('begins')\n{gate.wait}{then}")
    notebook.expect("begins", cell=cell)
    assert cell.outputs[0].text.startswith("Job "), "how it is doing comes first"
    assert "on ranks 0-1: in the background since" in cell.outputs[0].text
    other = notebook.run("print('mine')\nprint('and mine')")
    gate.open()
    notebook.expect("on ranks 0-1: done after", cell=cell)
    assert other.text == "mine\nand mine\n", "and nothing of the job"
    assert cell.stdout.startswith("begins\n")
    assert "steps: 100%" in cell.stdout
    assert cell.stdout.endswith("last\n")
    assert cell.mime("text/html")[1:2] == ["<b>second</b>"]
    notebook.expect("70", cell=cell)
    kinds = [out.kind for out in cell.outputs]
    assert kinds == ["display", "stdout", "display", "stdout", "display"]


def test_the_handle_tells_and_waits(notebook: Kernel, gate: Gate) -> None:
    cell = start(notebook, f"print('begun')\n{gate.wait}print('by', rank)")
    notebook.expect("begun", cell=cell)
    assert value(notebook, "job.done, job.ok") == "False False"
    shown = value(notebook, "repr(job)")
    assert re.fullmatch(r"<job \d+: running for [\d.]+ m?s on ranks 0-1>", shown)
    early = notebook.run("job.wait(0.01)", check=False)
    assert re.search(
        r"TimeoutError: job \d+ has not ended after 0.01 s; the job goes on", early.error
    )

    notebook.start("print('waits')\njob.wait()")
    notebook.expect("waits")
    notebook.interrupt()
    assert "only the waiting was stopped" in notebook.wait().error
    assert value(notebook, "job.done") == "False"

    gate.open()
    waited = notebook.run("job.wait()")
    assert re.fullmatch(r"Job \d+ on ranks 0-1: done after [\d.]+ m?s\.\n", waited.text)
    assert cell.stdout == "begun\nby 0\n", "all is shown when the waiting ends"
    assert value(notebook, "job.done, job.ok, job.errors, repr(job.output(1))") == (
        r"True True {} 'begun\nby 1\n'"
    )
    assert re.fullmatch(r"<job \d+: done after [\d.]+ m?s on ranks 0-1>", value(notebook, "job"))


def test_the_cells_value_is_the_handle(notebook: Kernel, gate: Gate) -> None:
    on_ranks(notebook, gate.wait, "--async")
    assert value(notebook, "_ is __import__('nbdist').jobs()[-1]") == "True"
    gate.open()


def test_a_cell_behind_it_says_what_it_waits_for(notebook: Kernel, gate: Gate) -> None:
    slow = start(notebook, f"{gate.wait}print('slow')")
    number = value(notebook, "job.id")
    waiting = notebook.start(distributed("print('never')"))
    notebook.expect(f"The ranks are busy with job {number} (In [", cell=waiting)
    notebook.interrupt()
    notebook.wait()
    assert "The cell was interrupted." in plain(waiting.text)
    assert f"The cell had not begun: it waited for job {number}" in plain(waiting.text)
    assert value(notebook, "job.state") == "running"

    behind = start(notebook, "print('behind')")
    notebook.expect(f"The ranks are busy with job {number} (In [", cell=behind)
    assert value(notebook, "job") == "<job {}: queued on ranks 0-1>".format(
        value(notebook, "job.id")
    )
    gate.open()
    notebook.run("job.wait()")
    notebook.expect("slow\n", cell=slow)  # another thread shows it than the one that was waited for
    assert slow.stdout == "slow\n"
    assert behind.stdout == "behind\n"
    assert re.search(rf"The cell waited [\d.]+ m?s for job {number}", behind.text)


def test_jobs_on_different_ranks_run_side_by_side(notebook: Kernel, gate: Gate) -> None:
    first = start(notebook, f"print('first')\n{gate.wait}", "--ranks 0")
    second = start(notebook, f"print('second')\n{gate.wait}", "--ranks 1")
    notebook.expect("first", cell=first)
    notebook.expect("second", cell=second)
    assert value(notebook, "[job.state for job in nbdist.jobs()[-2:]]") == "['running', 'running']"
    gate.open()


def test_jobs_side_by_side_find_a_mended_cluster(notebook: Kernel) -> None:
    on_ranks(notebook, "import os\nif rank == 1: os._exit(3)", check=False)
    two = "[nbdist.cluster().submit('rank + 1', ranks=[each]) for each in (0, 1)]"
    notebook.run(f"import nbdist\nfor job in {two}: job.wait(60)")
    total = "import torch.distributed as dist\ndist.barrier()\nprint(dist.get_world_size())"
    assert on_ranks(notebook, total).stdout == "2\n"


def test_a_loud_job_is_bounded_in_its_cell(notebook: Kernel) -> None:
    cell = start(notebook, "for number in range(60_000): print('line', number)")
    notebook.expect("line 59999", cell=cell)
    notebook.expect("hidden; `%dist logs 0`", cell=cell)
    assert len(cell.text) < 400_000


def test_how_it_fails_is_told_in_its_cell_alone(notebook: Kernel, gate: Gate) -> None:
    cell = start(notebook, f"{gate.wait}if rank == 1: raise ValueError('no good')")
    gate.open()
    notebook.expect("failed after", cell=cell)
    notebook.until(lambda: cell.outputs[-1].kind == "error", 30)
    assert "ValueError: no good" in plain(cell.outputs[-1].text)
    assert "Rank 1 failed" in plain(cell.outputs[-1].text)
    assert cell.ok
    assert notebook.run("'fine'").text == "'fine'\n"
    raised = notebook.run("job.wait()", check=False)
    assert raised.error.startswith("CellFailed: Rank 1 failed: ValueError: no good (cell line 4)")
    row = notebook.run("%dist jobs").stdout.splitlines()[-1]
    assert re.search(r"0-1 +failed +\d\d:\d\d:\d\d +[\d.]+ m?s +import pathlib, time +Rank 1 ", row)


def test_a_time_limit_and_a_cancel_end_it(notebook: Kernel, gate: Gate) -> None:
    late = start(notebook, gate.wait, "--timeout 0.3")
    notebook.expect("ran longer than --timeout 0.3 s", cell=late)
    cell = start(notebook, f"print('begun')\n{gate.wait}")
    notebook.expect("begun", cell=cell)
    notebook.run("job.cancel()")
    notebook.expect("The cell was interrupted.", cell=cell)
    notebook.expect("interrupted after", cell=cell)
    assert "Interrupted" in notebook.run("job.wait()", check=False).error
    running, queued = start(notebook, gate.wait), start(notebook, gate.wait)
    number = value(notebook, "job.id")
    notebook.run(f"%dist cancel {number}")
    notebook.expect("interrupted before it began", cell=queued)
    assert value(notebook, "nbdist.jobs()[-2].state") == "running"
    said = notebook.run(f"%dist cancel {number}").stdout
    assert said == f"Job {number} has ended before: interrupted.\n"
    notebook.run("%dist interrupt")
    notebook.expect("The cell was interrupted.", cell=running)


def test_what_it_returns_is_bound_between_cells(notebook: Kernel, gate: Gate) -> None:
    """Also of two jobs in a row, whose values the ranks have let go meanwhile."""
    notebook.run("small = big = None")
    flags = "--no-bring --return small,big"
    body = "import torch\nsmall, big = {0}, torch.full((300_000,), {0})"
    first = start(notebook, gate.wait + body.format(1), flags)
    notebook.start(
        "import time\nprint('waits')\nwhile not job.done: time.sleep(0.02)\n"
        "print('in this cell', small)"
    )
    notebook.expect("waits")
    gate.open()
    assert notebook.wait().stdout == "waits\nin this cell None\n"
    assert value(notebook, "small, int(big.sum())") == "1 300000"
    assert "Returned from rank 0: small" in first.text
    start(notebook, body.format(2), "--no-bring --return big")
    second = start(notebook, body.format(3), "--no-bring --return small")
    assert notebook.run("job.wait()\nprint(small)").stdout == "3\n", "and now, for who waits"
    assert value(notebook, "int(big.sum())") == "600000"
    notebook.expect("Returned from rank 0: small", cell=second)


def test_what_cannot_be_returned_is_told_in_its_cell(notebook: Kernel) -> None:
    cell = start(notebook, "if rank > 5:\n    nothing_such = 1", "--return nothing_such")
    notebook.expect("done after", cell=cell)
    assert notebook.run("1").ok
    notebook.expect("`nothing_such` cannot be returned from rank 0", cell=cell)


def test_jobs_can_be_looked_at_one_by_one(notebook: Kernel) -> None:
    start(notebook, "print('looked at')\n1 / 0")
    notebook.run("job.until_end()")
    page = notebook.run("get_ipython().run_line_magic('dist', f'jobs {job.id}')").stdout
    assert "ZeroDivisionError" in page
    assert "    print('looked at')\n    1 / 0\n" in page
    assert page.count("rank1.log") == 1
    assert "--async" in complete(notebook, "%%distributed --as")
    assert "cancel" in complete(notebook, "%dist ca")
    assert "number" in notebook.run("%dist cancel -h").stdout


def test_without_a_browser_the_notebook_says_how_it_ended(
    without_torch: dict[str, str], tmp_path: Path
) -> None:
    cells = [
        "%load_ext nbdist",
        distributed("print('told')\nanswer = 42", "-np 1 --backend none --async --return answer"),
        "job = _\njob.wait()\nprint(answer, job.output(0))",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, tmp_path / "book.ipynb")
    tool = ROOT / "tools" / "run_notebook.py"
    command = [sys.executable, str(tool), "book.ipynb", "done.ipynb"]
    env = os.environ | without_torch
    subprocess.run(
        command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=allowed(60)
    )
    kept = nbformat.read(tmp_path / "done.ipynb", as_version=4).cells
    assert "on rank 0: done after" in kept[1].outputs[0]["data"]["text/plain"]
    assert kept[2].outputs[-1]["text"].split() == ["42", "told"]


def test_a_cluster_with_a_job_is_changed_by_nobody_and_ends_with_it(
    start_kernel: KernelFactory, gate: Gate, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    running = start(kernel, f"print('begun')\n{gate.wait}", "-np 2 --backend none")
    kernel.expect("begun", cell=running)
    number = value(kernel, "job.id")
    queued = start(kernel, "print('never')")
    refused = on_ranks(kernel, "pass", "-np 3", check=False)
    assert f"wait for the job's end, or `%dist cancel {number}` first" in refused.error
    pull = kernel.start("%dist pull rank")
    kernel.expect(f"The ranks are busy: this command waits for job {number}", cell=pull)
    kernel.interrupt()
    kernel.wait()
    assert value(kernel, "nbdist.jobs()[-2].state") == "running"

    kernel.run("%dist stop")
    states = value(kernel, "[each.state for each in nbdist.jobs()[-2:]]")
    assert states == "['interrupted', 'interrupted']"
    for cell in (running, queued):
        kernel.expect("The cell was ended with its cluster.", cell=cell)

    again = start(kernel, f"print('again')\n{gate.wait}", "-np 1 --backend none")
    kernel.expect("again", cell=again)
    assert kernel.run("%dist jobs").stdout.count("\n") == 4, "those of the old cluster too"
    kernel.shutdown()  # and the harness looks for what is left
