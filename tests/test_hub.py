"""What the hub does where ranks are late, stopped, of another version, or do not answer."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from textwrap import dedent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from nbdist.backends.groups.recovery import Recovery
from nbdist.hub.asking import rank_equality, stacks
from nbdist.hub.hub import Hub
from nbdist.hub.link import forming
from nbdist.hub.link.ranks import Rank
from nbdist.hub.running import after_failure, cell_stop
from nbdist.hub.running.cell_run import Run
from nbdist.hub.running.cell_turn import waits_for
from nbdist.hub.running.life_cycle import stopped
from nbdist.job.deaths import Death
from nbdist.job.job import Job
from nbdist.job.states import INTERRUPT
from nbdist.launchers.host.protocol import CONTROLLER, Died
from nbdist.published.records import rank_of_cluster
from nbdist.settings import Settings
from nbdist.wire.activity import Pace, Vitals
from nbdist.wire.group_reports import NO_WAY, Digest
from nbdist.wire.messages import Display, Done, Fault, Hello, Pulse, Received
from tests.helpers.faults import MODELS, fails, shown
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.processes import runs
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

WITHOUT_CLUSTER = "-np 1 --launcher torchrun --backend none"
REGAINED = """
import torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total))
"""
SSH = """#!/bin/sh
touch {asked}
exec sleep 600
"""
SLOW = """
    import os, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    class Slow(torch.optim.SGD):
        def state_dict(self):
            open({asked!r}, "w").close()
            while rank and not os.path.exists({over!r}): time.sleep(0.02)
            return super().state_dict()
    model = DDP(torch.nn.Linear(2, 2))
    slow = Slow(model.parameters(), lr=0.1)
"""


def digest(content: str) -> Digest:
    """Return what a rank tells of one thing."""
    return Digest(outline="a", content=content, thing=1, together=True)


@pytest.fixture(scope="module")
def lone(start_shared: KernelFactory) -> Kernel:
    """Return a kernel with nbdist loaded and no cluster, for scripts."""
    kernel = start_shared()
    kernel.run("%load_ext nbdist\nimport nbdist, os, psutil, time")
    kernel.run(
        "from nbdist.notebook.session import session\n"
        "from nbdist.hub.running import script_launch, script_run"
    )
    return kernel


@pytest.fixture(scope="module")
def bare(start_shared: KernelFactory, without_torch: dict[str, str]) -> Kernel:
    """Return a kernel with nbdist loaded that finds no torch, for clusters without a backend."""
    kernel = start_shared(env=without_torch)
    kernel.run("%load_ext nbdist\nimport nbdist, os, psutil, signal, time")
    kernel.run("from nbdist.hub import hub; from nbdist.notebook.session import session")
    return kernel


def test_ranks_that_are_late_or_unlike_start_no_cluster_and_the_next_ones_do(bare: Kernel) -> None:
    flags = "-np 2 --backend none"
    bare.run("usual = os.environ['NBDIST_START_SECONDS']")
    bare.run("os.environ['NBDIST_START_SECONDS'] = '0.001'")
    bare.run("%unload_ext nbdist\n%load_ext nbdist")  # which prepares a hub with these settings
    told = shown(fails(bare, "pass", flags))
    assert "ranks 0-1 had not started after 0.001 s (NBDIST_START_SECONDS)" in told
    bare.run("os.environ['NBDIST_START_SECONDS'] = usual")
    bare.run("theirs = hub.PROTOCOL; hub.PROTOCOL += 1")
    told = shown(fails(bare, "pass", flags))
    assert re.search(
        r"rank \d uses version (\d+) of nbdist's protocol, and the notebook version \d+", told
    )
    bare.run("hub.PROTOCOL = theirs\ndef none(*_, **__): raise OSError(24, 'Too many open files')")
    bare.run("line, hub.Line = hub.Line, none")
    assert "Too many open files" in shown(fails(bare, "pass", flags))
    bare.run("hub.Line = line")
    assert "next" in on_ranks(bare, "print('next')", flags).text


def test_ranks_that_form_no_group_start_no_cluster_and_the_next_ones_do(
    shared_kernel: Kernel,
) -> None:
    kernel, flags = shared_kernel, "-np 2 --backend ddp"
    kernel.run("import os\nusual = os.environ['NBDIST_FORM_SECONDS']")
    kernel.run("os.environ['NBDIST_FORM_SECONDS'] = '1e-9'")
    kernel.run("%unload_ext nbdist\n%load_ext nbdist")  # which prepares a hub with this setting
    told = shown(fails(kernel, "pass", flags))
    assert "the process group could not be formed: " in told
    assert "did not answer" in told
    kernel.run("os.environ['NBDIST_FORM_SECONDS'] = usual")
    assert "sum 2" in on_ranks(kernel, REGAINED, flags).text


def replaced(kernel: Kernel, flags: str) -> str:
    """Kill the warm process that nothing has used yet; return what a cell prints then."""
    kernel.run("%unload_ext nbdist\n%load_ext nbdist")
    kernel.run(
        "warm = session.hubs._preparing.result().host.warm\nwhile not warm.pid: time.sleep(0.02)\n"
        "psutil.Process(warm.pid).kill()\nwhile not warm.gone.is_set(): time.sleep(0.02)"
    )
    return on_ranks(kernel, "print('again')", flags).stdout


def test_a_warm_process_that_died_before_anything_used_it_is_replaced(
    lone: Kernel, bare: Kernel
) -> None:
    assert replaced(bare, "-np 1 --backend none") == "again\n"
    assert replaced(lone, WITHOUT_CLUSTER) == "again\n"


def test_a_rank_without_variables_lacks_none(notebook: Kernel) -> None:
    notebook.run("%dist restart")  # for the variables of other tests
    fails(notebook, "if rank == 1: __import__('os').kill(__import__('os').getpid(), 9)")
    cell = on_ranks(notebook, "pass")
    assert "Rank 1 restarted, nothing is missing." in shown(cell)
    assert "Rank 1 restarted, nothing is missing." in notebook.run("%dist restart 1").text


def test_what_is_missing_after_a_restart_is_said(notebook: Kernel) -> None:
    notebook.run("%dist restart")  # for the variables of other tests
    define = "both = 1\nif rank == 1: own = 2"
    on_ranks(notebook, define)
    one = notebook.run("%dist restart 1").stdout
    assert one == ("Rank 1 restarted, missing: both, own (re-run the cells that define them).\n")
    on_ranks(notebook, define)
    like = notebook.run("%dist restart 1 --like 0").stdout
    assert like.startswith("Rank 1 restarted, missing: own (re-run the cells that define it).\n")
    on_ranks(notebook, define)
    assert notebook.run("%dist restart").stdout == (
        "Rank 0 restarted, missing: both (re-run the cells that define it).\n"
        "Rank 1 restarted, missing: both, own (re-run the cells that define them).\n"
    )
    assert notebook.run("%dist restart").stdout == (
        "Rank 0 restarted, nothing is missing.\nRank 1 restarted, nothing is missing.\n"
    )
    on_ranks(notebook, define)
    kill = "__import__('os').kill(__import__('os').getpid(), 9)"
    fails(notebook, f"if rank == 1: {kill}")
    assert notebook.run("%dist restart").stdout == (
        "Rank 0 restarted, missing: both (re-run the cells that define it).\n"
        "Rank 1 restarted, missing: both (re-run the cells that define it).\n"
    )
    on_ranks(notebook, define)
    fails(notebook, kill)
    assert notebook.run("%dist restart").stdout == (
        "All ranks were restarted; their variables are lost.\n"
    )


def test_sync_needs_all_ranks_and_forms_their_group_anew(notebook: Kernel) -> None:
    on_ranks(notebook, MODELS["ddp"] + "\nfirst = step()")
    on_ranks(notebook, "dist.destroy_process_group()")
    assert "model is now on all ranks as it was on rank 0" in notebook.run("%dist sync model").text
    schedule = "torch.optim.lr_scheduler.StepLR(optimizer, 1)"
    on_ranks(
        notebook,
        f"""
        schedule = {schedule}
        def refused(): raise ValueError("not from here")
        if rank == 1: schedule.state_dict = refused
        """,
    )
    # Rank 0 waits for what rank 1 will never send, until it is freed.
    refused = notebook.run("%dist sync schedule --from 1", check=False)
    assert "ValueError: not from here" in refused.error
    fails(notebook, "if rank == 1: os.kill(os.getpid(), 9)")
    refused = notebook.run("%dist sync model", check=False)
    assert "rank 1 is dead, so that `model` cannot be made equal on all ranks" in refused.error
    assert "run `%dist restart 1` first" in refused.error
    on_ranks(notebook, "model = optimizer = schedule = None")


def test_who_does_not_wait_for_the_comparison_has_it_before_the_next_cell(
    notebook: Kernel, tmp_path: Path
) -> None:
    asked, over = tmp_path / "asked", tmp_path / "over"
    on_ranks(notebook, SLOW.format(asked=str(asked), over=str(over)))
    notebook.start(distributed("if rank == 0: 1 / 0\ntorch.nn.init.zeros_(model.module.weight)"))
    until(asked.exists)
    notebook.interrupt()
    told = shown(notebook.wait())
    assert (
        "The models and optimizers of the ranks were not compared: you stopped the comparison. The "
        "next cell compares them." in told
    )
    over.touch()
    notebook.run(
        "from nbdist.hub.asking import rank_equality\n"
        "usual, rank_equality.TOLD_BYTES = rank_equality.TOLD_BYTES, 1"
    )
    told = shown(on_ranks(notebook, "pass"))
    assert "Comparing the models and optimizers of the ranks (24 B on each)." in told
    assert "No longer equal on all ranks" in told
    notebook.run("rank_equality.TOLD_BYTES = usual")
    on_ranks(notebook, "model = slow = None")


def test_what_cannot_be_reached_or_is_nobody_elses_is_told_apart() -> None:
    unnamed = f"Linear, DDP model 1{NO_WAY}"
    (told,) = rank_equality._parted(
        {0: {unnamed: digest("1")}, 1: {unnamed: digest("2")}}, "Parted", {}
    )
    assert told == f"Parted: `{unnamed}`.", "no path that `%dist sync` could take"
    unread = Digest(outline="a", content="", thing=1, why="ValueError: never")
    assert rank_equality._unknown({0: {"own": unread}, 1: {}}) == [], "nothing to compare it with"
    assert rank_equality._unknown({0: {"own": unread}, 1: {"own": digest("1")}}) == [
        "`own` could not be compared on rank 0: ValueError: never."
    ]


def test_a_rank_that_is_stopped_is_ended_with_its_cluster(bare: Kernel) -> None:
    on_ranks(bare, "pass", "-np 2 --backend none")
    pids = bare.run("pids = [one.pid for one in nbdist.cluster().ranks]\nprint(*pids)").stdout
    processes = [psutil.Process(int(pid)) for pid in pids.split()]
    bare.run("os.kill(pids[1], signal.SIGSTOP)")
    assert "The cluster was stopped." in bare.run("%dist stop").text
    assert not any(map(runs, processes))


def test_a_script_that_a_clusters_warm_process_runs_ends_with_it(lone: Kernel) -> None:
    lone.run("while session.hubs.host().scripts: time.sleep(0.02)  # those of other tests end")
    on_ranks(lone, "pass", "-np 1 --launcher engines --backend none")
    body = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.02)"
    cell = lone.run(distributed(body, f"{WITHOUT_CLUSTER} --async"))
    lone.expect("begun", cell=cell)
    lone.run("nbdist.cluster().stop()")
    assert "ended with its cluster" in shown(lone.run("nbdist.jobs()[-1].wait(100)", check=False))


def test_a_second_stop_of_a_script_does_not_wait_for_the_first(lone: Kernel) -> None:
    lone.run("usual = script_run.INTERRUPT_SECONDS, script_run.END_SECONDS")
    lone.run("script_run.INTERRUPT_SECONDS = script_run.END_SECONDS = 1e6")
    body = """
        import time
        print("begun", flush=True)
        while True:
            try:
                while True: time.sleep(0.02)
            except KeyboardInterrupt:
                print("goes on", flush=True)
    """
    cell = lone.run(distributed(body, f"{WITHOUT_CLUSTER} --async"))
    lone.expect("begun", cell=cell)
    lone.run("job = nbdist.jobs()[-1]\nwhile not job.pulses: time.sleep(0.02)\njob.cancel()")
    lone.expect("goes on", cell=cell)
    lone.run("job.cancel()")
    assert "The cell was interrupted." in shown(lone.run("job.wait(100)", check=False))
    lone.run("script_run.INTERRUPT_SECONDS, script_run.END_SECONDS = usual")


def test_a_script_that_cannot_be_started_says_why(lone: Kernel) -> None:
    lone.run("order = script_launch.StartLauncher")
    lone.run("script_launch.StartLauncher = lambda name, _, *rest: order(name, 'nowhere', *rest)")
    told = shown(fails(lone, "pass", WITHOUT_CLUSTER))
    assert "torchrun could not be started: ModuleNotFoundError: No module named" in told
    lone.run("script_launch.StartLauncher = order")
    lone.run("temp = session.hubs.host().temp\naway = temp.rename(f'{temp}.away')")
    told = shown(fails(lone, "pass", WITHOUT_CLUSTER))
    lone.run("away.rename(temp)")
    assert "nbdist cannot write its files: " in told
    assert "No such file or directory" in told


def test_a_script_is_stopped_while_its_hosts_are_asked(lone: Kernel, tmp_path: Path) -> None:
    asked, program = tmp_path / "asked", tmp_path / "ssh"
    program.write_text(SSH.format(asked=asked))
    program.chmod(0o700)
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=1\nfar.invalid slots=1\n")
    lone.run(f"path = os.environ['PATH']\nos.environ['PATH'] = f'{tmp_path}:{{path}}'")
    flags = f"--launcher torchrun --backend none --hostfile {hosts} --async"
    lone.run(distributed("pass", flags))
    lone.run(f"while not os.path.exists({str(asked)!r}): time.sleep(0.02)")
    lone.run("job = nbdist.jobs()[-1]\njob.cancel()")
    assert "The cell was interrupted." in shown(lone.run("job.wait(100)", check=False))
    lone.run("os.environ['PATH'] = path")


def test_what_ends_the_rank_when_it_is_returned_is_told(lone: Kernel) -> None:
    body = """
        import os
        class Last:
            def __reduce__(self): os._exit(0)
        last = Last()
    """
    cell = on_ranks(lone, body, f"{WITHOUT_CLUSTER} --return last", check=False)
    why = "the rank ended without a message (os._exit)"
    assert f"`last` cannot be returned from rank 0: {why}" in cell.error


def test_what_does_not_come_though_its_rank_has_ended_well_is_told(lone: Kernel) -> None:
    lone.run("usual, script_run.LAST_WORD_SECONDS = script_run.LAST_WORD_SECONDS, 0.05")
    body = """
        import os
        from nbdist.rank.reporter import Reporter
        Reporter._handle = lambda *_: os._exit(0)  # it is asked for the value
        value = 1
    """
    cell = on_ranks(lone, body, f"{WITHOUT_CLUSTER} --return value", check=False)
    assert "the values that the ranks return did not arrive in time" in cell.error
    assert lone.run("print(nbdist.jobs()[-1].state)").stdout == "failed\n"
    lone.run("script_run.LAST_WORD_SECONDS = usual")


def test_what_a_rank_did_is_not_shown_when_its_cell_is_over(tmp_path: Path) -> None:
    """Its words and the end of its cell come by two sockets, in any order (a stand-in of a hub)."""
    ranks = {number: Rank(number, tmp_path, state="busy") for number in range(2)}
    hub: Any = SimpleNamespace(ranks=ranks, running={}, settings=Settings.read())
    job = Job(id="1", code="", ranks=(0, 1), folder=tmp_path, number=1)
    job.parts = {0: (0, None), 1: (0, None)}
    hub.running["1"] = Run(hub, job)
    pulse = Pulse("1", 3, "", None, Vitals(0))
    Hub._hear_agent(hub, 0, 0, pulse)
    assert rank_of_cluster(ranks[0]).words == "line 3"
    Hub._hear_agent(hub, 0, 0, Done("1", 0))
    Hub._hear_agent(hub, 0, 0, pulse)
    Hub._hear_agent(hub, 1, 0, pulse)
    assert [rank_of_cluster(rank).words for rank in ranks.values()] == ["idle", "line 3"]


def a_hub(**parts: Any) -> Any:
    """Return a hub of these parts, without processes and sockets."""
    hub = Hub.__new__(Hub)
    vars(hub).update(parts)
    return hub


def test_what_a_rank_says_after_its_job_or_its_death_changes_nothing(tmp_path: Path) -> None:
    """What dies is told by the warm process, and may overtake what the rank itself has said."""
    ranks, sent = {number: Rank(number, tmp_path, state="busy") for number in range(2)}, []
    hub = a_hub(ranks=ranks, running={}, send=lambda *what: sent.append(what))
    hub._hear_agent(0, 0, Display("1", 0, "display_data", {}))
    assert sent == [(0, Received())], "the rank waits for it"
    hub._hear_agent(0, 0, Done("1", 0))
    job = Job(id="2", code="", ranks=(0, 1), folder=tmp_path, number=1)
    job.parts = {0: (0, None), 1: (0, None)}
    hub.settings = Settings.read()
    hub.running["2"] = run = Run(hub, job)
    last = Pulse("2", 3, "", None, Vitals(0), paces=[Pace("loop", 1, 1.0)])
    hub._hear_agent(0, 0, last)
    hub._hear_agent(0, 0, Pulse("2", 2, "", None, Vitals(0)))
    assert job.pulses[0] is last
    ranks[1].state, ranks[1].death = "dead", Death(1, 7, 9, 0, False, 1.0, None)
    run.died(ranks[1].death)
    hub._hear_agent(1, 0, Done("2", 0, logged=False))
    assert not ranks[1].alive
    assert isinstance(job.errors[1], Death)
    assert not job.unlogged
    ranks.clear()  # as when a cluster gets another size
    hub._hear_agent(1, 0, Done("2", 0))


async def test_a_rank_that_was_killed_has_no_good_end_though_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have ended its cell just before, and the system may not end it (a stand-in)."""
    monkeypatch.setattr(cell_stop, "KILLED_SECONDS", 0.2)
    loop, said = asyncio.get_running_loop(), []
    ranks = {0: Rank(0, tmp_path, pid=7, state="busy")}
    host = SimpleNamespace(signal=lambda *what: said.append(what))
    line = SimpleNamespace(lost=said.append)
    hub = a_hub(
        ranks=ranks, running={}, host=host, line=line, loop=loop, settings=Settings.read(),
        _arrivals={},
    )  # fmt: skip
    job = Job(id="2", code="", ranks=(0,), folder=tmp_path, number=1)
    job.parts = {0: (0, None)}
    hub.running["2"] = run = Run(hub, job)
    run.press(INTERRUPT)
    killing = loop.create_task(run._stopping._kill())
    await asyncio.sleep(0)
    hub._hear_agent(0, 0, Done("2", 0))
    run.press(INTERRUPT)
    await asyncio.sleep(0)
    assert not killing.done(), "its death has not been heard of"
    await asyncio.wait_for(killing, allowed(30))
    assert said == [(7, 9), 0]
    assert not ranks[0].alive
    assert str(stopped(job, INTERRUPT)).splitlines() == [
        "The cell was interrupted.", "Rank 0 could not be interrupted and was killed.",
    ]  # fmt: skip


async def test_what_has_failed_before_it_was_stopped_stays_a_failure(tmp_path: Path) -> None:
    hub: Any = SimpleNamespace(ranks={}, running={}, settings=Settings.read())
    job = Job(id="2", code="", ranks=(0, 1), folder=tmp_path, number=1)
    run = Run(hub, job, timeout=60)
    job.parts = {0: (0, None), 1: (0, None)}
    hub.ranks |= {rank: Rank(rank, tmp_path, state="busy") for rank in (0, 1)}
    run.done(1, Done("2", 0, Fault("ValueError", "own", ["Traceback"], 3, 1.0)))
    run._time_is_up(60)
    assert not run._press.event.is_set(), "a time limit hurries nothing"
    run.press(INTERRUPT)
    assert run._press.event.is_set()
    assert run._press.why is None
    stopped_before = Run(hub, Job(id="3", code="", ranks=(0,), folder=tmp_path, number=1))
    stopped_before.press(INTERRUPT)
    stopped_before._press.event.clear()
    stopped_before._time_is_up(60)
    assert not stopped_before._press.event.is_set()
    # Its fault may also be heard of only when it is being stopped.
    assert str(stopped(job, INTERRUPT)).splitlines() == [
        "The cell was interrupted.", "Rank 1 failed: ValueError: own (cell line 3).",
    ]  # fmt: skip


def test_a_disk_is_not_full_where_the_logs_were_removed(tmp_path: Path) -> None:
    gone = Job(id="1", code="", ranks=(0,), folder=tmp_path / "gone", number=1)
    assert not after_failure._full(gone)


async def test_ranks_that_start_hear_that_their_controller_has_died(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    arrivals: dict[int, asyncio.Future[None]] = {rank: loop.create_future() for rank in range(2)}
    arrivals[0].cancel()  # it took too long
    ranks = {number: Rank(number, tmp_path, 1) for number in range(3)}
    host = SimpleNamespace(controller_log_in_words=lambda: "its log is empty")
    hub = a_hub(ranks=ranks, _arrivals=arrivals, host=host)
    hub._hear(Died(CONTROLLER, 7, 9, 0, False))
    told = str(arrivals[1].exception())
    assert told.endswith("controller ended while rank 1 was starting; its log is empty")
    hub._hear(Died("rank 0.0", 7, 9, 0, False))  # which was rank 0 before
    for number in range(3):
        for _ in ("agent", "main thread"):
            hub._hear_agent(number, 1, Hello(number, 1, 8, "here"))
    assert [rank.state for rank in ranks.values()] == ["idle", "idle", "starting"]
    assert ranks[0].death is None


async def test_who_waits_for_what_is_not_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is still being tested (a stand-in of a hub)."""
    loop = asyncio.get_running_loop()

    async def ready() -> Any:
        return SimpleNamespace(recovery=Recovery("9.9"))

    warm = SimpleNamespace(probed=loop.create_future())
    hub: Any = SimpleNamespace(backend="ddp", host=SimpleNamespace(warm=warm, ready=ready))
    monkeypatch.setattr(forming, "PROBE_SECONDS", 0.0)
    assert forming.in_words(hub) == "How this torch recovers after a fault is still being tested."
    why = "the test of this torch has not ended yet"
    assert await forming.recovery_of(hub) == Recovery("9.9", groups=why, fsdp=why)
    assert waits_for([]) == "Waits for the ranks, which form their process group."


def test_stacks_are_asked_only_of_ranks_that_can_tell_them() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stacks.have_dumped(other.pid, os.getpid())  # it would die of the signal
        stacks.have_dumped(os.getpid(), other.pid)  # it has not started this one
        assert runs(psutil.Process(other.pid))
        other.communicate(b"\n")
    assert other.returncode == 0


BEGINS = """
        import os, signal, time
        from nbdist.job.job import Job
        from nbdist.hub.link.hub_loop import HubLoop
        soon, cancel = HubLoop.soon, Job.cancel
        def begin(self, work):
            future = soon(self, work)
            if work.__qualname__ in ("JobRun.run", "_start"):
                HubLoop.soon = soon
                os.kill(os.getpid(), signal.SIGINT)
            return future
        HubLoop.soon = begin
"""
INTERRUPTED = {
    "while it begins": BEGINS,
    "while it begins, and is over at once": BEGINS
    + """
        def cancelled(job):
            Job.cancel = cancel
            cancel(job)
            while not job.done: time.sleep(0.01)
        Job.cancel = cancelled
    """,
    "before it is shown": """
        import os, signal
        import nbdist.magics.distributed as magic
        see_to = magic._see_to
        def show(*args):
            magic._see_to = see_to
            os.kill(os.getpid(), signal.SIGINT)
            return see_to(*args)
        magic._see_to = show
    """,
}


@pytest.mark.parametrize("flags", ["", "--launcher torchrun"])
@pytest.mark.parametrize("when", INTERRUPTED)
def test_a_job_whose_cell_is_interrupted_before_it_is_shown_goes_on_for_nobody(
    notebook: Kernel, when: str, flags: str
) -> None:
    notebook.run(f"import nbdist\n{dedent(INTERRUPTED[when])}")
    sleeps = distributed("import time\ntime.sleep(600)", flags)
    stopped = notebook.run(sleeps, check=False)
    assert "was interrupted" in stopped.error
    assert notebook.run("print(nbdist.jobs()[-1].state)").stdout == "interrupted\n"
    assert notebook.run(distributed("print('next')", flags)).stdout.startswith("next")
    notebook.run(distributed("pass", "--launcher engines"))  # as the next test finds it
