"""`--launcher torchrun`: the same cell as a script, warm and by the plain command line."""

from __future__ import annotations

import re
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.helpers.kernel import Kernel

FLAGS = "-np 2 --launcher torchrun"


@pytest.fixture(scope="module")
def scripts(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist loaded and modules that scripts find, and no cluster."""
    shared_kernel.run("%load_ext nbdist\nimport gc, os, sys")
    return shared_kernel


RESTARTED = """
    import torch, torch.distributed as dist
    tries = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print("try", tries)
    dist.barrier()
    if rank == 1 and tries < {failures}:
        raise ValueError(f"failed on try {{tries}}")
    dist.all_reduce(torch.ones(1))
    print("done")
"""


def test_restarts_work_and_are_told(scripts: Kernel) -> None:
    cell = on_ranks(scripts, RESTARTED.format(failures=2), f"{FLAGS} --max-restarts 3")
    assert cell.stdout.splitlines()[0] == "try 0"
    assert cell.stdout.splitlines()[-2:] == ["try 2", "done"]
    assert "Traceback" not in cell.stdout
    assert "Restart 1 of 3: rank 1 failed: ValueError: failed on try 0" in shown(cell)
    assert "Restart 2 of 3: rank 1 failed: ValueError: failed on try 1" in shown(cell)


def test_cold_ranks_are_restarted_and_import_no_more_than_they_need(scripts: Kernel) -> None:
    imported = """
        # (With the whole word in it, it would be a script that shows something.)
        print([name for name in ("IPy" + "thon", "ipykernel", "torch.distributed.run")
               if name in sys.modules], gc.isenabled())
    """
    body = dedent(imported) + dedent(RESTARTED.format(failures=1))
    cell = on_ranks(scripts, body, f"{FLAGS} --cold --max-restarts 3")
    assert cell.stdout.splitlines()[:2] == ["[] True", "try 0"]
    assert cell.stdout.splitlines()[-3:] == ["[] True", "try 1", "done"]
    assert "Traceback" not in cell.stdout
    assert "Restart 1 of 3: rank 1 failed: ValueError: failed on try 0" in shown(cell)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("raise ValueError('bad batch')", "failed: ValueError: bad batch (cell line 10)"),
        ("os._exit(3)", "exited with code 3"),
    ],
    ids=["raises", "exits"],
)
def test_a_rank_lost_when_the_others_have_ended_is_told(
    scripts: Kernel, tmp_path: Path, ends: str, told: str
) -> None:
    body = f"""
        import os, pathlib, time
        agent = pathlib.Path({str(tmp_path)!r}, "agent")
        if rank == 0:
            agent.with_name("new").write_text(str(os.getppid()))
            agent.with_name("new").rename(agent)
        else:
            while not agent.exists() or pathlib.Path("/proc", agent.read_text()).exists():
                time.sleep(0.02)
            {ends}
    """
    cell = on_ranks(scripts, body, f"{FLAGS} --min-np 1")
    assert re.search(
        rf"Rank 1 {re.escape(told)}( at cell line \d+)?; the job has ended without it\.",
        shown(cell),
    )


def test_rich_display_keeps_its_place(scripts: Kernel) -> None:
    cell = on_ranks(
        scripts,
        """
        import matplotlib.pyplot as plt
        from IPython.display import HTML, display
        print("above")
        display(HTML("<b>bold</b>"), display_id=True).update(HTML("<b>bolder</b>"))
        print("below")
        plt.plot([1, 2])
        plt.show()
        print("last")
        """,
        FLAGS,
    )
    kinds = [
        next((k for k in ("image/png", "text/html") if k in out.data), "text")
        for out in cell.outputs
    ]
    assert kinds == ["text", "text/html", "text", "image/png", "text"]
    assert cell.stdout == "above\nbelow\nlast\n"


def test_variables_that_it_does_not_use_may_be_anything(scripts: Kernel) -> None:
    scripts.run(
        "import weakref\nclass Gone: pass\nkept = Gone()\ngone = weakref.proxy(kept)\ndel kept\n"
        "class Closed:\n    def __getattribute__(self, name): raise ValueError(name)\n"
        "closed, used = Closed(), 0.5"
    )
    assert on_ranks(scripts, "print(used)", FLAGS).stdout == "0.5\n"
    scripts.run("del gone, closed")


def test_the_last_expression_is_shown_as_in_a_notebook(scripts: Kernel) -> None:
    flags = f"{FLAGS} --output all"
    cell = on_ranks(scripts, "import torch\nx = torch.ones(2)\nx * (rank + 1)", flags)
    assert [out.text for out in cell.outputs if out.kind == "result"] == ["tensor([1., 1.])"]
    assert "[1] tensor([2., 2.])" in cell.stdout
    frame = "class Frame:\n    def _repr_html_(self):\n        return '<b>bold</b>'\nFrame()"
    results = [out.data for out in on_ranks(scripts, frame, FLAGS).outputs if out.kind == "result"]
    assert results[0]["text/html"] == "<b>bold</b>"
    for code in ("1 + 1;", "print('only this')", "y = 3", "!echo said", "if True:\n    3"):
        cell = on_ranks(scripts, code, FLAGS)
        assert not [out for out in cell.outputs if out.kind == "result"], code
    cell = on_ranks(scripts, "import asyncio\nawait asyncio.sleep(0)\n'waited'", FLAGS)
    assert "'waited'" in cell.text
    bad = on_ranks(scripts, "zero = 0\n1 / zero", FLAGS, check=False)
    assert "ZeroDivisionError: division by zero (cell line 3)" in bad.error


def test_a_time_limit_ends_it(scripts: Kernel) -> None:
    cell = on_ranks(
        scripts, "import time\ntime.sleep(600)", f"{FLAGS} --timeout 2", check=False, timeout=60
    )
    assert "--timeout 2 s" in shown(cell)


def test_variables_do_not_stay_and_the_last_launcher_does(scripts: Kernel) -> None:
    on_ranks(scripts, "mine = 1", FLAGS)
    cell = on_ranks(scripts, "print('mine' in globals())")
    assert cell.stdout == "False\n"
    jobs = scripts.run("%dist jobs").stdout
    assert "done" in jobs


def test_in_the_background(scripts: Kernel) -> None:
    on_ranks(scripts, "import time\ntime.sleep(0.5)\nx = rank + 7", f"{FLAGS} --async --return x")
    asked = "import nbdist; print(nbdist.jobs()[-1].done)"
    until(lambda: scripts.run(asked).stdout == "True\n", 60)
    assert scripts.run("print(x)").stdout == "7\n"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (f"{FLAGS} --ranks 1", "--ranks is for engines"),
        ("-np 2 --launcher engines --cold", "--cold is for scripts"),
        (
            "-np 2 --launcher engines --launcher-flags --standalone",
            "--launcher-flags is for scripts",
        ),
        (f"{FLAGS} --max-restarts -1", "--max-restarts -1"),
        (f"{FLAGS} --launcher-flags --no-such-flag", "arguments: --no-such-flag"),
        (f"{FLAGS} --launcher-flags --nproc_per=3", "--nproc_per=3 is set by nbdist"),
        (f"{FLAGS} --cold --launcher-flags other.py", "other.py is not a flag"),
        (f"{FLAGS} --min-np 3", "--min-np 3 is more than -np 2"),
        (f"{FLAGS} --min-np 0", "--min-np 0: at least one rank"),
        ("-np 0 --launcher torchrun", "-np 0: at least one rank"),
        ("-np 0 --launcher torchrun -H localhost:2", "-np 0: at least one rank"),
        (f"{FLAGS} -H ''", "'' is not HOST:SLOTS"),
        (f"{FLAGS} -H me@node1:2", "set the user in ssh's configuration"),
        (f"{FLAGS} --hostfile ''", "--hostfile cannot be read"),
        (f"{FLAGS} --launcher-flags=--rdzv-backend", "expected one argument"),
        (f"{FLAGS} --env OMP_NUM_THREADS=99999999999999999999", "set_num_threads"),
        (f"{FLAGS} --max-np 3", "--max-np 3: torchrun starts the ranks of -np (2), and cannot add"),
        (f"{FLAGS} -H localhost:1", "-np 2: the hosts have 1 slots"),
        (f"{FLAGS} --launcher-flags=--nnodes=2", "--nnodes=2 is set by nbdist"),
        (f"{FLAGS} --launcher-flags '--rdzv-backend none-such'", "none-such"),
        (f"{FLAGS} --timeout -1", "'-1' is not a number of seconds"),
    ],
)
def test_what_cannot_be_is_refused(scripts: Kernel, flags: str, told: str) -> None:
    cell = on_ranks(scripts, "pass", flags, check=False)
    if "--env" in flags:  # which is kept for the cells that follow
        on_ranks(scripts, "pass", f"{FLAGS} --env OMP_NUM_THREADS=1")
    assert told in shown(cell)


def test_threads_may_be_named_for_each_level(scripts: Kernel) -> None:
    flags = f"{FLAGS} --env OMP_NUM_THREADS=3,1"
    assert on_ranks(scripts, "import torch\nprint(torch.get_num_threads())", flags).stdout == "3\n"


def test_a_log_that_cannot_be_completed_hides_nothing(scripts: Kernel) -> None:
    code = """
        import pathlib
        log = pathlib.Path(__file__).with_name(f"rank{rank}.log")
        log.unlink()
        log.mkdir()  # as good as a disk that is full
        raise ValueError("the true cause")
        """
    cell = on_ranks(scripts, code, FLAGS, check=False)
    assert "failed: ValueError: the true cause (cell line 6)" in cell.error


@pytest.fixture(autouse=True)
def _no_script_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a job leaves its logs and script, and nothing that was only for its time."""
    ours = "scripts" in request.fixturenames
    home = request.getfixturevalue("scripts").home if ours else None
    yield
    if home is not None:
        for name in ("program.json", "rendezvous", "elastic"):
            assert not list(home.glob(f"logs/*/{name}"))


def test_jobs_have_their_folder(scripts: Kernel) -> None:
    logs = scripts.home / "logs"
    before = set(logs.glob("*"))
    on_ranks(scripts, "print('hello')", "-np 1 --launcher torchrun")
    (folder,) = [place for place in set(logs.iterdir()) - before if (place / "script.py").exists()]
    assert "print('hello')" in (folder / "script.py").read_text()
    assert (folder / "rank0.log").read_text() == "hello\n"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.starts_processes
def test_the_agent_opens_no_gpu_that_its_forks_could_not_open_again(tmp_path: Path) -> None:
    """What looks for GPUs opens them; a stand-in says that it was called."""
    code = """if True:
        import os, sys, torch
        from nbdist.backends.torch_private import elastic
        def look(): os.write(1, b"a GPU was looked for\\n")  # a line at once, as both may
        torch.cuda.is_available = look
        elastic.launch(sys.argv[1:], lambda path: torch.cuda.is_available(), "script")
        assert torch.cuda.is_available is look
    """
    flags = [
        "--nnodes=1", "--nproc-per-node=2", "--rdzv-id=alone", "--rdzv-backend=c10d",
        f"--rdzv-endpoint={tmp_path / 'meeting'}", "--rdzv-conf=store_type=file",
        f"--log-dir={tmp_path}", "--local-addr=127.0.0.1",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *flags],
        capture_output=True, text=True, timeout=allowed(60), check=True,
    )  # fmt: skip
    assert done.stdout == "a GPU was looked for\n" * 2, "by the ranks alone"
