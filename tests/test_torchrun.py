"""`--launcher torchrun`: the same cell as a script, warm and by the plain command line."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.faults import shown
from tests.notebook import distributed, on_ranks, printed_by
from tests.test_orphans import all_end, family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import KernelFactory
    from tests.kernel import Kernel

BOTH = pytest.mark.parametrize("how", ["", "--cold"], ids=["warm", "cold"])
FLAGS = "-np 2 --launcher torchrun --backend ddp"
TRAIN = """
    import subprocess, time
    from torch.utils.data import DataLoader
    loader = iter(DataLoader(list(range(100_000)), num_workers=1))
    child = subprocess.Popen(["sleep", "600"])
    subprocess.run(["setsid", "--fork", "sleep", "600"], check=True)
    while True:
        next(loader)
        dist.all_reduce(torch.ones(1))
        print("training", flush=True) if rank == 0 else None
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def scripts(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist loaded and torch imported, and no cluster."""
    shared_kernel.run("%load_ext nbdist\nimport torch, torch.distributed as dist")
    return shared_kernel


@BOTH
def test_a_cell_is_a_script_of_its_own(scripts: Kernel, how: str) -> None:
    scripts.run("offset = torch.tensor([40.0])\ndef shifted(x):\n    return x + offset")
    cell = on_ranks(
        scripts,
        """
        total = torch.ones(1)
        dist.all_reduce(total)
        answer = shifted(total)
        print(rank, world_size, answer.item(), __name__)
        """,
        f"{FLAGS} {how} --return answer,nowhere",
        check=False,
    )
    assert cell.stdout == "0 2 42.0 __main__\n"
    assert "`nowhere` cannot be returned from rank 0: it is not defined there" in shown(cell)
    assert scripts.run("print(answer)").stdout == "tensor([42.])\n"
    assert printed_by(scripts, 1) == "1 2 42.0 __main__\n"


@BOTH
def test_the_true_cause_is_told(scripts: Kernel, how: str) -> None:
    cell = on_ranks(
        scripts,
        """
        print("before")
        if rank == 1:
            raise ValueError("the true cause")
        dist.all_reduce(torch.ones(1))
        """,
        f"{FLAGS} {how}",
        check=False,
    )
    told = shown(cell)
    assert "Rank 1 failed: ValueError: the true cause (cell line 4)" in told
    assert 'raise ValueError("the true cause")' in told
    assert "In[" in told
    assert cell.stdout == "before\n"


def test_a_killed_rank_is_named(scripts: Kernel) -> None:
    cell = on_ranks(
        scripts,
        """
        import os, signal
        if rank == 1:
            print("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
        """,
        FLAGS,
        check=False,
    )
    assert "Rank 1 was ended by SIGKILL" in shown(cell)
    assert "last words" in shown(cell)


@BOTH
def test_restarts_work_and_are_told(scripts: Kernel, how: str) -> None:
    cell = on_ranks(
        scripts,
        """
        import os
        tries = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("try", tries)
        if rank == 1 and tries < 2:
            raise ValueError(f"failed on try {tries}")
        dist.all_reduce(torch.ones(1))
        print("done")
        """,
        f"{FLAGS} {how} --max-restarts 3",
    )
    assert cell.stdout.splitlines()[0] == "try 0"
    assert cell.stdout.splitlines()[-2:] == ["try 2", "done"]
    assert "Restart 1 of 3: rank 1 failed: ValueError: failed on try 0" in shown(cell)
    assert "Restart 2 of 3: rank 1 failed: ValueError: failed on try 1" in shown(cell)


@pytest.mark.parametrize("where", ["collective", "python"])
def test_an_interrupt_ends_it(scripts: Kernel, where: str) -> None:
    waits = "dist.all_reduce(torch.ones(1))" if where == "collective" else "time.sleep(600)"
    before = family(scripts)
    scripts.start(
        distributed(
            f"""
            import time
            print("begun", flush=True)
            if rank == 0:
                {waits}
            time.sleep(600)
            """,
            FLAGS,
        )
    )
    scripts.expect("begun", 60)
    scripts.interrupt()
    cell = scripts.wait(30)
    assert "The cell was interrupted." in shown(cell)
    assert "Traceback" not in cell.stdout
    all_end([process for process in family(scripts) if process not in before])


def test_a_stop_is_heard_before_the_launcher_is_there(scripts: Kernel) -> None:
    scripts.run(
        f"get_ipython().run_cell_magic('distributed', '{FLAGS} --async', 'while True: pass')"
        ".cancel()"
    )
    ended = scripts.run("import nbdist; nbdist.jobs()[-1].wait(60)", check=False)
    assert "The cell was interrupted." in shown(ended)


def test_dist_interrupt_and_stop_mean_scripts_too(start_kernel: KernelFactory) -> None:
    kernel = start_kernel()
    kernel.run("%load_ext nbdist\nimport nbdist")
    for command, told in (("interrupt", "was interrupted"), ("stop", "ended with its cluster")):
        body = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
        cell = kernel.start(distributed(body, f"{FLAGS} --async"))
        kernel.expect("begun", 60, cell)
        kernel.run(f"%dist {command}")
        ended = kernel.run("nbdist.jobs()[-1].wait(60)", check=False)
        assert told in shown(ended)


def test_a_rank_that_ends_without_a_word_holds_nobody_up(scripts: Kernel) -> None:
    body = "import os\nsilent = 1\nif rank == 1:\n    os._exit(0)"
    on_ranks(scripts, body, f"{FLAGS} --return silent")
    assert scripts.run("print(silent)").stdout == "1\n"


def test_names_are_returned_after_a_restart(scripts: Kernel) -> None:
    body = """
        import os
        after = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if after == "0":
            raise ValueError("on every rank")
        """
    on_ranks(scripts, body, f"{FLAGS} --max-restarts 1 --return after")
    assert scripts.run("print(after)").stdout == "1\n"


@pytest.mark.parametrize("ends", ["pass", "sys.exit()"])
def test_a_fork_that_comes_to_the_end_is_no_rank(scripts: Kernel, ends: str) -> None:
    body = f"""
        import os, sys
        child = os.fork()
        if child == 0:
            {ends}
        else:
            print("ended", os.waitpid(child, 0)[1])
        """
    cell = on_ranks(scripts, body, f"{FLAGS} --backend none --return child")
    assert cell.stdout == "ended 0\n"


def test_exit_functions_run(scripts: Kernel) -> None:
    body = "import atexit\natexit.register(print, 'last word')"
    assert on_ranks(scripts, body, FLAGS).stdout == "last word\n"


def test_a_rank_its_launcher_ends_is_not_to_blame(scripts: Kernel) -> None:
    body = """
        import time
        if rank == 1:
            time.sleep(0.5)
            raise ValueError("the cause")
        time.sleep(600 * rank)
        """
    told = shown(on_ranks(scripts, body, f"{FLAGS} -np 3 --backend none", check=False))
    assert "Rank 1 failed: ValueError: the cause" in told
    assert "SignalException" not in told
    assert "Rank 0 exited" not in told
    assert "Rank 2 was stopped at cell line 6" in told


def test_a_killed_launcher_is_named(scripts: Kernel) -> None:
    body = """
        import os, signal, time
        if rank == 0:
            time.sleep(1)
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
        """
    cell = on_ranks(scripts, body, FLAGS, check=False)
    assert "torchrun itself was ended by SIGKILL, and its ranks with it" in shown(cell)


def test_the_warm_process_is_replaced(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    body = "import os, psutil\npsutil.Process(os.getppid()).parent().kill()"
    on_ranks(kernel, body, FLAGS, check=False)
    assert on_ranks(kernel, "print('again')", FLAGS).stdout == "again\n"


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


def test_a_hang_is_told(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_HANG_SECONDS": "1"})
    kernel.run("%load_ext nbdist\nimport torch, torch.distributed as dist")
    kernel.start(
        distributed(
            """
            import time
            if rank == 0:
                dist.all_reduce(torch.ones(1))
            else:
                time.sleep(600)
            """,
            FLAGS,
        )
    )
    kernel.expect("Ranks have been waiting for each other", 60)
    kernel.interrupt()
    told = shown(kernel.wait(30))
    assert "rank 0 waits in all_reduce" in told
    assert "rank 1 is at cell line 6" in told


def test_a_time_limit_ends_it(scripts: Kernel) -> None:
    cell = on_ranks(
        scripts, "import time\ntime.sleep(600)", f"{FLAGS} --timeout 2", check=False, timeout=60
    )
    assert "--timeout 2 s" in shown(cell)


def test_all_of_its_sockets_are_on_loopback(scripts: Kernel) -> None:
    scripts.start(
        distributed(
            """
            import time
            dist.all_reduce(torch.ones(1))
            print("connected", flush=True)
            time.sleep(600)
            """,
            FLAGS,
        )
    )
    scripts.expect("connected", 60)
    listening = [
        found.laddr.ip
        for process in family(scripts)
        for found in process.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    ]
    scripts.interrupt()
    scripts.wait(30)
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}


@BOTH
def test_nothing_outlives_the_kernel(kernel: Kernel, how: str) -> None:
    kernel.run("%load_ext nbdist\nimport torch, torch.distributed as dist")
    kernel.start(distributed(TRAIN, f"{FLAGS} {how}"))
    kernel.expect("training", 60)
    processes = family(kernel)
    os.kill(kernel.pid, signal.SIGKILL)
    all_end(processes)
    marked = [each for each in psutil.process_iter() if each.name() == "sleep"]
    assert not [each for each in marked if "NBDIST_TEST_KERNEL" in _environ(each)]


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_variables_do_not_stay_and_the_last_launcher_does(scripts: Kernel) -> None:
    on_ranks(scripts, "mine = 1", FLAGS)
    cell = on_ranks(scripts, "print('mine' in globals())")
    assert cell.stdout == "False\n"
    jobs = scripts.run("%dist jobs").stdout
    assert "done" in jobs


def test_in_the_background(scripts: Kernel) -> None:
    on_ranks(scripts, "import time\ntime.sleep(0.5)\nx = rank + 7", f"{FLAGS} --async --return x")
    deadline = time.monotonic() + 60
    while scripts.run("import nbdist; print(nbdist.jobs()[-1].done)").stdout != "True\n":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert scripts.run("print(x)").stdout == "7\n"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (f"{FLAGS} --ranks 1", "--ranks is for engines"),
        ("-np 2 --launcher engines --cold", "--cold is for scripts"),
        ("-np 2 --launcher engines -- --nnodes=2", "what stands after -- is for scripts"),
        (f"{FLAGS} --max-restarts -1", "--max-restarts -1"),
        (f"{FLAGS} -- --no-such-flag", "--no-such-flag"),
        (f"{FLAGS} -- --nproc_per=3", "--nproc_per=3 is decided by nbdist"),
        (f"{FLAGS} --cold -- other.py", "other.py is no flag"),
        (f"{FLAGS} --timeout -1", "'-1' is not a number of seconds"),
    ],
)
def test_what_cannot_be_is_refused(scripts: Kernel, flags: str, told: str) -> None:
    cell = on_ranks(scripts, "pass", flags, check=False)
    assert told in shown(cell)


@pytest.fixture(autouse=True)
def _no_script_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a job leaves its logs and script, and nothing that was only for its time."""
    ours = "scripts" in request.fixturenames
    home = request.getfixturevalue("scripts").home if ours else None
    yield
    if home is not None:
        for name in ("program.json", "rendezvous", "elastic"):
            assert not list(home.glob(f"logs/*/{name}"))


def test_jobs_have_their_folder(start_kernel: KernelFactory) -> None:
    kernel = start_kernel()
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "print('hello')", "-np 1 --launcher torchrun --backend none")
    (folder,) = [
        place for place in (kernel.home / "logs").iterdir() if (place / "script.py").exists()
    ]
    assert "print('hello')" in (folder / "script.py").read_text()
    assert (folder / "rank0.log").read_text() == "hello\n"
    assert folder.stat().st_mode & 0o777 == 0o700
