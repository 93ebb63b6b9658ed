"""However the kernel, the controller or the warm process ends, no process of ours outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.helpers.faults import shown
from tests.helpers.kernel import KERNEL_MARK, Kernel, KernelGoneError
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.processes import command, environment, family, runs
from tests.helpers.waiting import allowed, until, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import KernelFactory

pytestmark = pytest.mark.repeats  # who is killed leaves no word of what ran

SECONDS = 5.0
"""From the end of the kernel to the end of the last process."""

NP = "-np 2 --backend none"
CHILDREN = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
# Out of the session, and its parent ends at once.
subprocess.run(["setsid", "--fork", "sleep", "600"], check=True)
"""
STEPS = """
while True:
    step()
    print("training", flush=True) if rank == 0 else None
    time.sleep(0.05)
"""
TRAIN = f"""{CHILDREN}
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
loader = iter(DataLoader(list(range(100_000)), num_workers=2))
def step():
    next(loader)
    dist.all_reduce(torch.ones(1))
{STEPS}"""
WORK = f"""{CHILDREN}
import multiprocessing
context = multiprocessing.get_context("fork")
batches = context.SimpleQueue()
def load():
    while True:
        batches.put(0)
loaders = [context.Process(target=load, daemon=True) for _ in range(2)]
for each in loaders:
    each.start()
step = batches.get
{STEPS}"""
"""The same processes without torch."""
FORK = """
import os, time
if (forked := os.fork()) == 0:
    os.setsid()
    time.sleep(600)
    os._exit(0)
"""


def warm_of(kernel: Kernel) -> psutil.Process:
    """Return the warm process of a kernel, its only child."""
    (warm,) = psutil.Process(kernel.pid).children()
    return warm


def controller_of(kernel: Kernel) -> psutil.Process:
    """Return ipyparallel's controller: what the warm process has started besides ranks."""
    ranks = kernel.run("import nbdist\nprint(*[r.pid for r in nbdist.cluster().ranks])").stdout
    (controller,) = [p for p in warm_of(kernel).children() if str(p.pid) not in ranks.split()]
    return controller


def all_end(processes: list[psutil.Process], seconds: float = SECONDS) -> None:
    """Check that these processes end in time; whether they are reaped is their new parent's."""
    until(
        lambda: not any(map(runs, processes)), seconds,
        lambda: [process for process in processes if runs(process)],
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared_kernel(start_shared: KernelFactory, without_torch: dict[str, str]) -> Kernel:
    """Return a kernel without torch, which each new warm process would import for seconds."""
    return start_shared(env=without_torch)


@pytest.fixture
def ranks(shared_kernel: Kernel) -> Kernel:
    """Return the module's kernel with two ranks: those that are there, or new ones.

    Each test may end the ranks, their cluster or the kernel. What the next one starts here shows
    that this can be done after each of these ends.
    """
    if not shared_kernel.alive:
        shared_kernel.restart()
    shared_kernel.run("%load_ext nbdist")
    again = "print('again' if rank == 0 else rank)"
    assert on_ranks(shared_kernel, again, NP).stdout == "again\n"
    return shared_kernel


def no_folders_stay(kernel: Kernel) -> None:
    """Check that its clusters' folders go, before the next cluster may clear them away."""
    until(lambda: not list((kernel.home / "clusters").iterdir()), SECONDS)


def kill_kernel(kernel: Kernel) -> None:
    os.kill(kernel.pid, signal.SIGKILL)


def crash_kernel(kernel: Kernel) -> None:
    """End it as `os.abort()` in it would, also while it is busy with a cell."""
    os.kill(kernel.pid, signal.SIGABRT)


def check_that_all_end(kernel: Kernel, end: Callable[[Kernel], None], busy: str = "") -> None:
    """End a kernel while its two ranks are busy or idle: neither it nor any child lives on."""
    if busy:
        kernel.start(distributed(busy))
        kernel.expect("training", 30)
    processes = family(kernel)
    assert len(processes) >= (4 + 2 * 3 if busy else 4)
    processes.append(psutil.Process(kernel.pid))
    sleepers: list[psutil.Process] = []

    def all_sleep() -> bool:
        sleepers[:] = [p for p in psutil.process_iter() if _is_sleeper(p, kernel)]
        return len(sleepers) == (4 if busy else 0)

    until(all_sleep, 30)
    end(kernel)
    all_end(processes + sleepers)
    no_folders_stay(kernel)


@pytest.mark.parametrize("end", [kill_kernel, Kernel.restart], ids=["killed", "restarted"])
def test_nothing_outlives_a_kernel_that_ends_while_ranks_train(
    kernel: Kernel, end: Callable[[Kernel], None]
) -> None:
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "pass", "-np 2 --backend ddp")
    check_that_all_end(kernel, end, TRAIN)


def test_nothing_outlives_a_kernel_that_crashes_while_ranks_work(ranks: Kernel) -> None:
    check_that_all_end(ranks, crash_kernel, WORK)


def test_nothing_outlives_a_kernel_that_is_killed_while_ranks_are_idle(ranks: Kernel) -> None:
    check_that_all_end(ranks, kill_kernel)


@pytest.mark.parametrize("busy", ["", WORK], ids=["idle", "working"])
def test_nothing_outlives_a_kernel_that_is_restarted(ranks: Kernel, busy: str) -> None:
    check_that_all_end(ranks, Kernel.restart, busy)
    assert not family(ranks), "the new kernel has not loaded nbdist"


def _is_sleeper(process: psutil.Process, kernel: Kernel) -> bool:
    """Whether it is a `sleep` that a rank of this kernel has started, wherever it is now."""
    ours = environment(process).get(KERNEL_MARK) == kernel.mark
    return ours and command(process)[:1] == ["sleep"]


@pytest.mark.parametrize("born", [2, 4], ids=["warm process", "ranks"])
def test_a_kernel_killed_while_it_starts(
    start_kernel: KernelFactory, without_torch: dict[str, str], born: int
) -> None:
    """In the first case while the warm process imports torch, which takes long."""
    kernel = start_kernel(env={} if born == 2 else without_torch)
    kernel.run("%load_ext nbdist")
    kernel.start(distributed("pass", "-np 2" if born == 2 else NP))
    until(lambda: len(family(kernel)) >= born)
    processes = family(kernel)
    kernel.sigkill()
    all_end(processes)  # and what was born meanwhile is found at the end of the test


@pytest.mark.timeout(180)
def test_what_kernels_left_that_ended_at_once_goes_with_the_next(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    """Between the making of a folder and the birth of who removes it there is nobody to do so."""
    killed = start_kernel(home="at-once", env=without_torch)
    killed.run("%load_ext nbdist")
    processes = family(killed)
    killed.sigkill()
    all_end(processes)
    left = start_kernel(home="at-once", env=without_torch)
    left.run("%load_ext nbdist")
    processes = family(left)
    left.start("import os; os._exit(0)")
    with pytest.raises(KernelGoneError):
        left.wait(20)
    all_end(processes)
    last = start_kernel(home="at-once", env=without_torch)
    last.run("%load_ext nbdist")
    on_ranks(last, "pass", NP)
    assert len(list((last.home / "clusters").iterdir())) == 1
    check_that_all_end(last, Kernel.shutdown, WORK)


def test_a_fork_of_the_kernel_keeps_nothing_alive(ranks: Kernel) -> None:
    processes = [psutil.Process(ranks.pid), *family(ranks)]
    ranks.run(FORK)
    fork = psutil.Process(int(ranks.run("forked").text))
    kill_kernel(ranks)
    all_end(processes)
    no_folders_stay(ranks)
    assert fork.is_running()
    fork.kill()
    fork.wait(allowed(5))


def test_the_warm_process_dies(ranks: Kernel) -> None:
    kernel = ranks
    warm = warm_of(kernel)
    kernel.start(distributed(WORK))
    kernel.expect("training", 30)
    processes = family(kernel)
    warm.kill()
    stopped = kernel.wait(20)
    assert "warm process, the parent of its ranks, has died, and all ranks with it" in shown(
        stopped
    )
    all_end(processes)
    assert "lost" in kernel.run("%dist status").stdout
    again = on_ranks(kernel, "print('again', 'loaders' in globals())")
    assert "a new cluster was started. All variables on the ranks are lost." in again.text
    assert again.stdout == "again False\n"


def test_the_controller_dies(ranks: Kernel) -> None:
    kernel = ranks
    on_ranks(kernel, "kept = rank")
    assert "0" in kernel.run("%px print(rank)").text
    controller = controller_of(kernel)
    controller.kill()
    until(lambda: not controller.is_running())  # the warm process has noticed
    assert on_ranks(kernel, "print('on', kept)").stdout == "on 0\n"
    for line in ("%px print(rank)", "%dist restart 1"):
        with within(15):  # and not for the controller
            told = kernel.run(line, check=False)
        assert "the ipyparallel controller of this cluster has died" in told.error
        assert "`%dist restart`" in told.error
    assert on_ranks(kernel, "print('on', kept)").stdout == "on 0\n"
    assert "their variables are lost" in kernel.run("%dist restart").stdout
    assert on_ranks(kernel, "print('kept' in globals())").stdout == "False\n"
    assert "1" in kernel.run("%px print(rank)").text


def test_the_controller_dies_while_a_rank_starts(ranks: Kernel) -> None:
    controller, warm = controller_of(ranks), warm_of(ranks)
    controller.suspend()  # it takes nobody in
    before = {process.pid for process in warm.children()}
    ranks.start(distributed("pass", "-np 1"))
    until(lambda: {process.pid for process in warm.children()} - before)
    controller.kill()
    with within(15):  # and not for the rank
        told = ranks.wait(60)
    assert "ipyparallel's controller ended while rank 0 was starting; its log" in told.error
    assert on_ranks(ranks, "print('again')", NP).stdout == "again\n"


def test_two_clusters_in_one_process_end_one_by_one(ranks: Kernel) -> None:
    """The notebook's own and another one."""
    first = family(ranks)
    ranks.run("import nbdist\na, b = nbdist.cluster(), nbdist.Cluster(1, backend='none')")
    ranks.run("jobs = a.run('x = rank'), b.run('x = 7')\nassert all(job.ok for job in jobs)")
    assert ranks.run("print(b.run('print(x)').output())").stdout == "7\n\n"
    second = [process for process in family(ranks) if process not in first]
    assert len(second) >= 2
    ranks.run("b.stop()")
    all_end(second)
    assert ranks.run("print(a.run('print(x)').output(1))").stdout == "1\n\n"
    ranks.run("a.stop()")
    all_end(first)


def test_unloading_ends_everything(ranks: Kernel) -> None:
    processes = family(ranks)
    ranks.run("%unload_ext nbdist")
    all_end(processes)
    assert "distributed" not in ranks.run("%lsmagic").text
    ranks.run("%load_ext nbdist")
    assert on_ranks(ranks, "print('again')", NP).stdout == "again\n"


STARTED_WHEN_LISTED = """if True:
    import subprocess, psutil
    from nbdist.machine import operating_system
    operating_system.adopt_orphans()
    first = subprocess.Popen(["sleep", "600"])
    later = []
    def chosen(process):
        if not later: later.append(subprocess.Popen(["sleep", "600"]))
        return True
    operating_system.kill_descendants(chosen)
    print(first.wait(10), later[0].wait(10), psutil.Process().children())
"""


@pytest.mark.starts_processes
def test_what_is_started_while_descendants_are_killed_ends_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED_WHEN_LISTED],
        capture_output=True, text=True, check=True, timeout=allowed(60),
    )  # fmt: skip
    assert done.stdout == "-9 -9 []\n"
