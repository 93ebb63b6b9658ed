"""Scripts that end in odd ways: silently, forked, before they begin, with all that ran them."""

from __future__ import annotations

import os
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.hub.running.launch_plan import Plan
from nbdist.hub.running.script_ends import Ends, LauncherLog
from nbdist.hub.running.script_outcome import Outcome
from nbdist.hub.running.script_run import ScriptRun
from nbdist.job import rows
from nbdist.job.job import Job
from nbdist.job.output import Output
from nbdist.job.states import INTERRUPT
from nbdist.launchers.host.protocol import Died
from nbdist.launchers.scripts import horovodrun
from nbdist.launchers.scripts.launcher import Elastic, Failed
from nbdist.wire.activity import Bar, Vitals
from nbdist.wire.messages import Done, Fault, Hello, Pulse
from tests.helpers.faults import shown
from tests.helpers.notebook import distributed, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

FLAGS = "-np 2 --launcher torchrun --backend ddp"


@pytest.fixture(scope="module")
def scripts(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist loaded, and no cluster."""
    shared_kernel.run("%load_ext nbdist")
    return shared_kernel


def test_a_stop_is_heard_before_the_launcher_is_there(scripts: Kernel) -> None:
    scripts.run(
        f"get_ipython().run_cell_magic('distributed', '{FLAGS} --async', 'while True: pass')"
        ".cancel()"
    )
    ended = scripts.run("import nbdist; nbdist.jobs()[-1].wait(200)", check=False)
    assert "The cell was interrupted." in shown(ended)


def test_dist_interrupt_and_stop_mean_scripts_too(start_kernel: KernelFactory) -> None:
    kernel = start_kernel()
    kernel.run("%load_ext nbdist\nimport nbdist")
    for command, told in (("interrupt", "was interrupted"), ("stop", "ended with its cluster")):
        body = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
        cell = kernel.start(distributed(body, f"{FLAGS} --async"))
        kernel.expect("begun", 60, cell)
        kernel.run(f"%dist {command}")
        ended = kernel.run("nbdist.jobs()[-1].wait(200)", check=False)
        assert told in shown(ended)


def test_a_rank_that_ends_without_a_word_holds_nobody_up(scripts: Kernel) -> None:
    body = "import os\nsilent = 1\nif rank == 1:\n    os._exit(0)"
    on_ranks(scripts, body, f"{FLAGS} --return silent")
    assert scripts.run("print(silent)").stdout == "1\n"


@pytest.mark.parametrize("who", ["True", "rank == 0"], ids=["all", "rank 0"])
def test_what_a_rank_cannot_return_since_it_left_is_told(scripts: Kernel, who: str) -> None:
    body = f"import os\nfilled = 1\nif {who}:\n    os._exit(0)"
    cell = on_ranks(scripts, body, f"{FLAGS} --return filled", check=False)
    why = "the rank ended without a message (os._exit)"
    assert f"`filled` cannot be returned from rank 0: {why}" in cell.error


def test_one_that_leaves_the_others_alone_is_told_first(scripts: Kernel, tmp_path: Path) -> None:
    body = f"""
        import os, time
        import torch.distributed as dist
        while rank == 1 and not os.path.exists({str(tmp_path / "there")!r}): time.sleep(0.02)
        if rank == 1: os._exit(0)
        open({str(tmp_path / "there")!r}, "w").close()
        dist.barrier()
    """
    cell = on_ranks(scripts, body, FLAGS, check=False)
    told = r"CellFailed: Rank 1 exited with code 0( at cell line \d)?\n"
    assert re.match(rf"{told}Rank 0 lost the connection at cell line 7\.", cell.error), cell.error
    own = body.replace("dist.barrier()", "time.sleep(3)\n        raise ValueError('own')")
    assert on_ranks(scripts, own, FLAGS, check=False).error.startswith(
        "CellFailed: Rank 0 failed: ValueError: own (cell line 8)"
    )


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


def test_a_rank_its_launcher_ends_is_not_to_blame(scripts: Kernel, tmp_path: Path) -> None:
    body = f"""
        import os, time; there = {str(tmp_path / "there")!r}
        if rank == 1:
            while not os.path.exists(there): time.sleep(0.02)
            raise ValueError("the cause")
        if rank == 2: open(there, "w").close(); time.sleep(600)
        """
    told = shown(on_ranks(scripts, body, f"{FLAGS} -np 3 --backend none", check=False))
    assert "Rank 1 failed: ValueError: the cause" in told
    assert "SignalException" not in told
    assert "Rank 0 exited" not in told
    assert "Rank 2 was stopped at cell line 6" in told


def test_a_rank_killed_before_the_stop_is_told_with_it(scripts: Kernel, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    body = f"""
        import os, time
        if rank == 1:
            while not os.path.exists({str(heard)!r}): time.sleep(0.02)
            os.kill(os.getpid(), 9)
        while True:
            try:
                time.sleep(60)
            except Exception:  # SIGTERM, as the launcher has it
                print("goes on", flush=True)
    """
    cell = scripts.run(distributed(body, f"{FLAGS} --async"))
    scripts.run("import nbdist, time; job = nbdist.jobs()[-1]")
    scripts.run("while {0, 1} - job.pulses.keys(): time.sleep(0.02)")
    heard.touch()
    scripts.expect("goes on", 60, cell)
    scripts.run("job.cancel()")
    error = scripts.run("job.wait(100)", check=False).error
    assert re.search(r"Rank 1 was killed by SIGKILL( at cell line \d+)?\.", error)
    assert re.search(r"Rank 0 was stopped at cell line \d+\.", error)


def test_a_killed_launcher_is_named(scripts: Kernel, tmp_path: Path) -> None:
    body = f"""
        import os, signal, time
        if rank == 0:
            while not os.path.exists({str(tmp_path / "there")!r}): time.sleep(0.02)
            os.kill(os.getppid(), signal.SIGKILL)
        open({str(tmp_path / "there")!r}, "w").close()
        time.sleep(600)
        """
    cell = on_ranks(scripts, body, FLAGS, check=False)
    assert "torchrun itself was killed by SIGKILL, and its ranks with it" in shown(cell)


def test_the_warm_process_is_replaced(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    body = "import os, psutil\npsutil.Process(os.getppid()).parent().kill()"
    on_ranks(kernel, body, FLAGS, check=False)
    assert on_ranks(kernel, "print('again')", FLAGS).stdout == "again\n"


def test_a_rank_that_its_launcher_ends_is_not_blamed_however_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "launcher.log"
    log = LauncherLog(path, horovodrun.failures)
    assert log.new() == []
    found = []
    with path.open("a") as out:
        for written in (
            "Process 1 exit with status code 3.\n",
            "ERROR:root:blacklisted slots count == 2 -> stop running\nProcess 0 exit wi",
            "th status code 134.\n",  # a signal that Horovod's own threads have raised
            "Process 2 exit with status code 137.\n",  # one that did not heed SIGTERM
        ):
            out.write(written)
            out.flush()
            found.append(log.new())
    assert found == [[Failed(1, 3, 0)], [], [], []]


def test_a_rank_may_fail_twice_in_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "launcher.log"
    log = LauncherLog(path, horovodrun.failures)
    failed = "Process 1 exit with status code 3.\n"
    found = []
    for times in (1, 1, 2):
        path.write_text(failed * times)
        found.append(log.new())
    assert found == [[Failed(1, 3, 0)], [], [Failed(1, 3, 0)]]


def test_a_rank_whose_agent_is_killed_is_told(scripts: Kernel) -> None:
    body = """
        import os, signal, time
        import nbdist
        from nbdist.rank.metrics import logger
        for step in nbdist.progress(range(40), samples=8):
            nbdist.log(loss=world_size + 10 * rank)
            if rank == 1 and step == 30:
                logger._recorder.pack()
                os.kill(os.getppid(), signal.SIGKILL)
            if world_size == 2 and step == 35:
                time.sleep(600)
        print("ended with", world_size)
    """
    cell = on_ranks(scripts, body, f"{FLAGS} --min-np 1")
    assert cell.stdout == "ended with 1\n"
    assert "Rank 1 was killed by SIGKILL" in shown(cell)
    asked = scripts.run("""
        import nbdist
        from nbdist.job.throughput import measured
        job = nbdist.jobs()[-1]
        row, notes = measured(job)
        print(job.metrics["loss"].mean()[1].tolist() == [1.0] * 40, job.metrics.last("loss"))
        print(list(job.pulses), job.present, row.ranks, row.samples_per_second is not None, notes)
    """)
    assert asked.stdout == "True 1.0\n[0] (0,) 1 True []\n"


def test_a_rank_does_not_begin_again_when_the_others_have_ended(
    scripts: Kernel, tmp_path: Path
) -> None:
    body = f"""
        import os, pathlib, time
        print("begun with", world_size)
        agent = pathlib.Path({str(tmp_path)!r}, "agent")
        if rank == 0:
            agent.with_name("new").write_text(str(os.getppid()))
            agent.with_name("new").rename(agent)
        else:
            while not agent.exists() or pathlib.Path("/proc", agent.read_text()).exists():
                time.sleep(0.02)
            raise ValueError("bad batch")
    """
    cell = on_ranks(scripts, body, f"{FLAGS} --min-np 1 --max-restarts 1", check=False)
    assert cell.error.startswith("CellFailed: Rank 1 failed: ValueError: bad batch")
    assert cell.stdout == "begun with 2\n"


async def test_who_ran_before_a_restart_is_not_heard_after_it(tmp_path: Path) -> None:
    """A restart of a script, by what its hub hears; the host of its launcher is a stand-in."""
    job = Job(id="1", code="", ranks=(0, 1), folder=tmp_path, number=1)
    host: Any = SimpleNamespace(warm=None)
    run = ScriptRun(host, job, Plan(1, 2, max_restarts=1), Output(job, "rank0"), 60.0)
    try:
        for rank, restart in ((0, 0), (1, 0), (0, 1)):
            run._hear(rank, restart, Hello(rank, restart, os.getpid(), "here", size=2))
        assert job.restarts == ["Restart 1 of 1: ranks failed"]
        run._hear(1, 0, Done("1", 0))
        assert run.ended() == set()
        run._hear(1, 1, Hello(1, 1, os.getpid(), "here", size=2))
        run._hear(1, 1, Done("1", 0))
        assert run.ended() == {1}
        run._hear_launcher(Died("launcher", 7, 0, 0, False))
        run.press(INTERRUPT)  # too late
        assert not run.failed()
        assert run._stopping is None
    finally:
        run._line.close()


async def test_a_rank_that_is_gone_is_not_the_slowest(tmp_path: Path) -> None:
    """Rank 2 is slow and dies; the other two begin again."""
    job = Job(id="1", code="", ranks=(0, 1, 2), folder=tmp_path, number=1)
    host: Any = SimpleNamespace(warm=None)
    plan = Plan(1, 3, max_restarts=1, elastic=Elastic(2))
    run = ScriptRun(host, job, plan, Output(job, "rank0"), 60.0)

    def step(rank: int, restart: int, seconds: float) -> None:
        bar = Bar("train", 50, 100, 1 / seconds, samples=8 / seconds)
        run._hear(rank, restart, Pulse("1", 3, "", None, Vitals(0), bars=[bar]))

    try:
        for rank in job.ranks:
            run._hear(rank, 0, Hello(rank, 0, os.getpid(), "here", size=3))
            step(rank, 0, 0.5 if rank == 2 else 0.1)
        assert rows.straggler(job.pulses).startswith("Rank 2 is the slowest")
        run._hear(0, 1, Hello(0, 1, os.getpid(), "here", size=2))
        assert rows.bars(job.pulses) == []
        for rank in (0, 1):
            run._hear(rank, 1, Hello(rank, 1, os.getpid(), "here", size=2))
            step(rank, 1, 0.1)
        step(2, 0, 0.5)  # what it had still sent
        assert rows.straggler(job.pulses) == ""
        assert [bar.samples for bar in rows.bars(job.pulses)] == [160]
        assert job.present == (0, 1)
        job.began = 1.0
        assert rows.row(job, 2, job.pulses.get(2)).state == "gone"
    finally:
        run._line.close()


def test_the_rank_without_which_an_elastic_job_could_not_go_on_is_blamed(tmp_path: Path) -> None:
    """Rank 1 dies, rank 2 loses its connection, and Horovod gives up and ends rank 0."""
    job = Job(id="1", code="", ranks=(0, 1, 2), folder=tmp_path, number=1)
    plan = Plan(1, 3, launcher="horovodrun", elastic=Elastic(1))
    ranks, warm = Ends(job, horovodrun.failures), SimpleNamespace()
    outcome = Outcome(job, plan, horovodrun, ranks, warm)  # type: ignore[arg-type]
    for rank in job.ranks:
        ranks.began(rank, Hello(rank, 0, os.getpid(), "here", size=3))
    with (tmp_path / "launcher.log").open("w") as log:
        log.write("Process 1 exit with status code 137.\n")
        log.flush()
        outcome.look_for_lost()
        ranks.ended(2, Fault("RuntimeError", "Connection reset by peer", [], 7, time.time()))
        outcome.look_for_lost()
        log.write("Process 0 exit with status code 143.\n")
    lost = [text for text in job.reports if "goes on if enough ranks are left" in text]
    assert [text.split(" (")[0].split(":")[0][:6] for text in lost] == ["Rank 1", "Rank 2"]
    error = str(outcome.tell(Died("launcher", 7, 0, 1, False), None))
    assert error.startswith("Rank 1 was killed by SIGKILL")
    assert "SIGTERM" not in error
    assert "Rank 0 was stopped" in error
    assert "Horovod gives up a host" in error
