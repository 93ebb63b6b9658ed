"""Ranks that wait for each other, or that nothing can reach, and the disk that is full."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from nbdist.hub.running import hang_report
from nbdist.hub.running.script_ends import Ends
from nbdist.hub.running.watch import Watch
from nbdist.job.job import Job
from nbdist.job.output import Output
from nbdist.machine.process_lives import here
from nbdist.wire.activity import Vitals
from nbdist.wire.group_reports import Waiting
from nbdist.wire.messages import Fault, Hello, Pulse
from tests.helpers.faults import ended_in_time, fails, shown
from tests.helpers.notebook import distributed, on_ranks, printed_by
from tests.helpers.states import NOBODY
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

HANG = """
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        while not os.path.exists({go!r}): time.sleep(0.05)
        dist.all_reduce(torch.ones(1))
    print('went on')
"""
MISMATCHED = """
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.barrier(pair)
"""
HOLDS_THE_GIL = """
    import ctypes
    c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    def deep():
        while True: c.pthread_mutex_lock(lock)  # a second time it never returns
    if rank == 1:
        deep()
    dist.all_reduce(torch.ones(1))
"""
LOOK_MEANWHILE = """
import nbdist, pathlib, threading, time
seen, stuck, looked = {{}}, pathlib.Path({stuck!r}), pathlib.Path({looked!r})
def look():
    while not stuck.exists(): time.sleep(0.05)
    while "in deep" not in seen.get(1, "") or "all_reduce" not in seen.get(0, ""):
        seen.update(nbdist.cluster().stacks())
    looked.touch()
threading.Thread(target=look, daemon=True).start()
"""
SMALL = 1 << 19


@pytest.fixture(scope="module")
def mended(start_shared: KernelFactory) -> tuple[Kernel, Cell, Cell]:
    """Return a kernel that at first had no place for logs, its failed cell and the next one."""
    kernel = start_shared(env={"NBDIST_HOME": "/proc/nbdist"})
    kernel.run("%env NBDIST_HANG_SECONDS=1\n%env NBDIST_KILL_SECONDS=5\n%load_ext nbdist")
    failed = fails(kernel, "print('hello')", "-np 2")
    ended_in_time(failed, failed.sent)
    kernel.run(f"%env NBDIST_HOME={kernel.home}")
    return kernel, failed, on_ranks(kernel, "print('hello')", "-np 2")


@pytest.fixture
def cluster(mended: tuple[Kernel, Cell, Cell]) -> Kernel:
    """Return the kernel with two ranks, which may be new, and what the tests need on them."""
    kernel, *_ = mended
    on_ranks(kernel, "import os, time, torch, torch.distributed as dist", "-np 2")
    on_ranks(kernel, "pair = dist.new_group([0, 1])\nkept = f'kept by {rank}'")
    return kernel


def told_by(cell: Cell) -> list[str]:
    """Return the texts that a cell's displays have had, in their order."""
    return [out.text for out in cell.events if out.kind in ("display", "update")]


def numbers_in(texts: list[str], pattern: str) -> list[int]:
    return [int(found) for text in texts for found in re.findall(pattern, text)]


class Watched:
    """The run of a job, as its watch sees it."""

    def __init__(self, pulses: dict[int, Pulse | None]) -> None:
        self.pulses, self.ranks, self.stopped = pulses, set(pulses), False

    def running(self) -> dict[int, Pulse | None]:
        """Return the last words of those that run."""
        return dict(self.pulses)

    def ended(self) -> set[int]:
        """Return the others."""
        return self.ranks - set(self.pulses)

    def failed(self) -> bool:
        """Return what the test has set."""
        return self.stopped

    def looked(self) -> None:
        """Do nothing else."""


@pytest.mark.parametrize(("group", "told"), [("0", "has not reached it"), ("tp", "is elsewhere")])
def test_who_may_have_no_part_in_a_wait_is_not_said_to_be_late(group: str, told: str) -> None:
    waiting = Waiting("all_reduce", group, 3, 20.0)
    pulses: dict[int, Pulse | None] = {
        0: Pulse("7", 2, "all_reduce", waiting, Vitals(0)),
        1: Pulse("7", 9, "sleep", None, Vitals(0)),
    }
    text = hang_report.describe(pulses, set(), 10.0, "interrupt the cell")
    assert f"rank 1 {told} (cell line 9, in sleep)" in text


async def test_who_was_stopped_or_has_failed_is_in_no_hang(tmp_path: Path) -> None:
    job = Job(id="7", code="", ranks=(0, 1, 2), folder=tmp_path, number=1)
    waits = Pulse("7", 2, "all_reduce", Waiting("all_reduce", "0", 3, 20.0), Vitals(0))
    works = Pulse("7", 9, "sleep", None, Vitals(0))
    job.parts = dict.fromkeys(job.ranks, (0, 0))
    watched = Watched({0: waits, 1: waits, 2: works})
    watch = Watch(job, Output(job, "rank0"), 10.0, watched)
    watched.stopped = True
    watch._look_for_hang()
    assert not job.reports, "no hang begins when all are being stopped"
    watched.stopped = False
    watch._look_for_hang()
    [told] = job.reports
    assert "rank 2 has not reached it (cell line 9, in sleep)" in told
    watched.stopped = True
    del watched.pulses[2]
    watch._look_for_hang()
    del watched.pulses[1]
    watch._look_for_hang()
    assert job.reports == [told], "it does not say of rank 2 that it is done with the cell"
    await watch.show_rest()
    assert re.match(r"The possible hang ended with the cell, after \d+ s\.", job.reports[-1])


def test_of_a_script_only_who_has_ended_well_is_done(tmp_path: Path) -> None:
    """Rank 0 ends, 1 is lost by an elastic job, 2 ends without a word, 3 goes on."""
    job = Job(id="7", code="", ranks=(0, 1, 2, 3), folder=tmp_path, number=1)
    ranks = Ends(job, lambda _: [])
    for rank in job.ranks:
        pid = NOBODY if rank == 2 else os.getpid()
        ranks.began(rank, Hello(rank, 0, pid, "here", size=4, place=here().name))
    ranks.ended(0, None)
    assert not ranks.failed()
    ranks.ended(1, Fault("ValueError", "boom", [], 3, 0.0))
    assert ranks.failed()
    ranks.lost()
    assert not ranks.failed(), "the job goes on, and may hang"
    ranks.look()
    assert ranks.over() == {0, 2}
    assert ranks.running() == {3: None}


def test_a_hang_is_told_kept_current_and_resolved(cluster: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    lasts = r"has waited in all_reduce #\d+ for (\d+) s"
    done = cluster.start(distributed(HANG.format(go=str(go))))
    cluster.until(lambda: len(set(numbers_in(told_by(done), lasts))) > 1, 60)
    go.touch()
    assert cluster.wait().ok, done.seen()
    *earlier, last = told_by(done)
    seconds = numbers_in(told_by(done), lasts)
    assert seconds == sorted(seconds)
    # The first may have come before rank 1 had told that it is there.
    assert re.search(r"rank 0 has waited in all_reduce #\d+ for \d+ s \(cell line 3\)", earlier[-1])
    assert re.search(r"rank 1 has not reached it \(cell line 5, in ", earlier[-1])
    assert all("Nothing was stopped." in text for text in earlier)
    assert re.match(r"Resolved after \d+ s: ", last)
    assert done.text.count("Resolved") + done.text.count("hang") == 1, (
        "it is one display, kept current"
    )
    assert done.stdout == "went on\n"


def test_a_rank_whose_traceback_takes_long_is_not_killed(cluster: Kernel, tmp_path: Path) -> None:
    begun, told = tmp_path / "begun", tmp_path / "told"
    code = f"""
        class Slow(Exception):
            def __str__(self):
                open({str(begun)!r}, "w").close()
                while not os.path.exists({str(told)!r}): time.sleep(0.05)
                return "slow to tell"
        if rank == 1:
            raise Slow
        dist.all_reduce(torch.ones(1))
    """
    cell = cluster.start(distributed(code))
    until(begun.exists, 60)
    cluster.interrupt()
    cluster.expect("Rank 1 has failed, and the traceback is being made", 60)
    told.touch()
    cluster.wait(60)
    assert "killed" not in cell.error
    assert on_ranks(cluster, "print(kept)").stdout == "kept by 0\n"
    assert printed_by(cluster, 1) == "kept by 1\n"


def test_different_collectives_are_told_by_name(cluster: Kernel) -> None:
    cell = cluster.start(distributed(MISMATCHED))
    one = r"rank 0 has waited in all_reduce #\d+ for \d+ s \(cell line 3\)"
    other = r"rank 1 has waited in barrier(?: #\d+)? of group \d+ for \d+ s \(cell line 5\)"
    cluster.until(lambda: all(re.search(each, shown(cell)) for each in (one, other)), 20)
    assert "Possible hang: " in shown(cell)
    cluster.interrupt()
    cluster.wait(20)
    assert on_ranks(cluster, "print(kept)").stdout == "kept by 0\n"


def test_who_waits_for_ranks_that_do_not_run_the_cell_is_told(cluster: Kernel) -> None:
    cluster.start(distributed("dist.all_reduce(torch.ones(1))", "--ranks 1"))
    text = shown(cluster.expect("Possible hang: ", 20))
    assert re.search(r"rank 1 has waited in all_reduce #\d+ for \d+ s \(cell line 2\)", text)
    assert "rank 0 does not run the cell" in text
    cluster.interrupt()
    cluster.wait(20)


def test_a_rank_that_holds_the_gil_is_seen_and_in_the_end_replaced(
    cluster: Kernel, tmp_path: Path
) -> None:
    stuck, looked = tmp_path / "stuck", tmp_path / "looked"
    cluster.run(LOOK_MEANWHILE.format(stuck=str(stuck), looked=str(looked)))
    cluster.start(distributed(HOLDS_THE_GIL))
    cluster.expect("C code may hold the GIL", 20)
    stuck.touch()
    until(looked.exists)
    cluster.interrupt()
    stopped = cluster.wait(20)
    countdown = numbers_in(told_by(stopped), r"In (\d+) s rank 1 is killed")
    assert len(set(countdown)) > 1, stopped.seen()
    assert countdown == sorted(countdown, reverse=True)
    assert countdown[0] <= 5
    text = shown(stopped)
    assert "Rank 1 could not be interrupted and was killed" in text
    assert "Rank 0 was waiting in all_reduce at cell line 8" in text
    stacks = cluster.run("print(seen[0])\nprint('---')\nprint(seen[1])").stdout
    waiting, _, holding = stacks.partition("---")
    assert "all_reduce" in waiting
    assert re.search(r"line 5 in deep", holding)
    assert on_ranks(cluster, "print(kept if rank == 0 else '')").stdout == "kept by 0\n"


def test_a_taken_port_does_not_matter(cluster: Kernel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cell = f"""
            import os
            import torch, torch.distributed as dist
            os.environ["MASTER_PORT"] = "{port}"
            dist.init_process_group("gloo", init_method="env://")
            total = torch.ones(1)
            dist.all_reduce(total)
            print(int(total))
        """
        assert on_ranks(cluster, cell).stdout == "2\n"
        cluster.run("%dist restart")
        assert on_ranks(cluster, cell).stdout == "2\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk that is soon full; skip where we may not."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "nbdist-test", str(tmp_path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk must be mounted, and that is not allowed here: {error}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_is_told_and_the_ranks_live_on(
    start_kernel: KernelFactory, small_disk: Path
) -> None:
    kernel = start_kernel(env={"NBDIST_HOME": str(small_disk / "home")})
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "kept = 1", "-np 2")
    full = fails(kernel, "for _ in range(20_000): print('x' * 100)")
    assert "OSError: [Errno 28] No space left on device (cell line 2)" in full.error
    assert "The disk with the ranks' logs is full" in shown(full)
    assert str(small_disk) in shown(full)
    on_ranks(kernel, "assert kept == 1\nkept += 1")
    for log in small_disk.glob("home/logs/*/*.log"):
        with log.open("r+b") as file:
            file.truncate(0)
    assert on_ranks(kernel, "print('seen')\nkept").text == "seen\n2\n"
    kernel.shutdown()


def test_a_log_folder_that_cannot_be_is_told_and_can_be_mended(
    mended: tuple[Kernel, Cell, Cell],
) -> None:
    _, failed, then = mended
    assert "/proc/nbdist" in failed.error
    assert "NBDIST_HOME sets" in failed.error
    assert then.stdout == "hello\n"
