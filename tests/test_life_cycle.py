"""A job ends whatever happens to it, and its end is told (runs without ranks)."""

from __future__ import annotations

import asyncio
import signal
from concurrent import futures
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.errors import Interrupted, LaunchError, NbdistError
from nbdist.hub.link import hub_loop
from nbdist.hub.running import kernel_run
from nbdist.hub.running.kernel_run import InsideRun
from nbdist.hub.running.life_cycle import JobRun
from nbdist.hub.running.watch import Watch
from nbdist.job.events import Notice
from nbdist.job.job import Job
from nbdist.job.output import BACKLOG, Output
from nbdist.job.states import INTERRUPT, WITH_CLUSTER, Stop
from nbdist.rank.kernel_rank import Signals
from nbdist.wire.activity import Vitals
from nbdist.wire.messages import Done, Pulse
from tests.helpers.waiting import Deadline, allowed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Lived(JobRun):
    """Does what it is told to, and notes how far it has come."""

    def __init__(self, folder: Path, timeout: float | None = None) -> None:
        job = Job(id="1", code="", ranks=(0,), folder=folder, number=1)
        super().__init__(job, Output(job, "rank0"), timeout=timeout, patience=60.0)
        self.job, self.begun = job, asyncio.Event()
        self.prepared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.worked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cleared = self.left = False

    def press(self, why: Stop) -> None:
        """Stop the work."""
        self._press.press(why)
        if not self.worked.done():
            self.worked.set_result(None)

    def running(self) -> dict[int, Pulse | None]:
        """Return its one rank, which says nothing."""
        return {0: None}

    def ended(self) -> set[int]:
        """Return no rank."""
        return set()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.left = True

    async def _prepare(self) -> None:
        await self._press.unless(asyncio.wait_for(self.prepared, allowed(60)))

    async def _work(self) -> None:
        self._job.parts = {0: (0, None)}
        self._output.begin()
        self.begun.set()
        await self.worked
        self._job.parts = {0: (0, 0)}

    async def _outcome(self) -> NbdistError | None:
        self._job.state = "done" if self._press.why is None else self._press.why.state
        return None

    def _clear_away(self) -> None:
        self.cleared = True


async def until_begun(run: Lived) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(run.run())
    run.prepared.set_result(None)
    await asyncio.wait_for(run.begun.wait(), allowed(20))
    assert run.job.state == "running"
    return task


def check_ended(run: Lived) -> None:
    assert run.job.done
    assert run.left
    assert run.cleared


async def test_it_is_done_when_its_work_is(tmp_path: Path) -> None:
    run = Lived(tmp_path)
    task = await until_begun(run)
    run.worked.set_result(None)
    await asyncio.wait_for(task, allowed(20))
    check_ended(run)
    assert run.job.ok
    assert run.job.error is None
    assert run.job.seconds is not None


@pytest.mark.parametrize("why", [INTERRUPT, WITH_CLUSTER], ids=lambda why: why.by)
async def test_a_stop_before_it_begins_ends_it(tmp_path: Path, why: Stop) -> None:
    run = Lived(tmp_path)
    asyncio.get_running_loop().call_soon(run.press, why)
    await asyncio.wait_for(run.run(), allowed(20))
    check_ended(run)
    assert run.prepared.cancelled()
    assert run.job.began is run.job.seconds is None
    assert run.job.state == "interrupted"
    assert isinstance(run.job.error, Interrupted)
    assert str(run.job.error) == f"The cell was {why.text}."


class Late(Lived):
    """Is stopped while it is prepared, and heeds that only then."""

    async def _prepare(self) -> None:
        self.press(INTERRUPT)


async def test_what_was_stopped_while_it_was_prepared_does_not_begin(tmp_path: Path) -> None:
    run = Late(tmp_path)
    await asyncio.wait_for(run.run(), allowed(20))
    check_ended(run)
    assert not run.begun.is_set()
    assert str(run.job.error) == f"The cell was {INTERRUPT.text}."


async def test_its_time_limit_stops_it(tmp_path: Path) -> None:
    run = Lived(tmp_path, timeout=0.01)
    await asyncio.wait_for(await until_begun(run), allowed(20))
    check_ended(run)
    assert run.job.state == "timed out"


async def test_a_fault_while_it_is_prepared_ends_it(tmp_path: Path) -> None:
    run = Lived(tmp_path)
    run.prepared.set_exception(LaunchError("no rank came"))
    await asyncio.wait_for(run.run(), allowed(20))
    check_ended(run)
    assert run.job.state == "failed"
    assert isinstance(run.job.error, LaunchError)
    assert run.job.seconds is None


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (NbdistError("no more room"), "no more room"),
        (ZeroDivisionError("by 0"), "nbdist itself failed: ZeroDivisionError: by 0"),
        (SystemExit(3), "nbdist itself failed: SystemExit: 3"),
    ],
    ids=["expected", "ours", "exit"],
)
async def test_a_fault_at_its_work_ends_it(tmp_path: Path, fault: BaseException, told: str) -> None:
    run = Lived(tmp_path)
    task = await until_begun(run)
    run.worked.set_exception(fault)
    await asyncio.wait_for(task, allowed(20))
    check_ended(run)
    assert run.job.state == "failed"
    assert str(run.job.error) == told
    assert run.job.seconds is not None


async def until(condition: Callable[[], object]) -> None:
    """Wait for something, but not for ever."""
    deadline = Deadline(30)
    while not condition():
        assert not deadline.over
        await asyncio.sleep(0.01)


class Counted(Output):
    """Counts how often the rest was tried to be shown."""

    tries = 0

    def finish(self) -> bool:
        """Count one more."""
        self.tries += 1
        return super().finish()


async def test_the_rest_of_its_output_waits_for_its_viewer(tmp_path: Path) -> None:
    job = Job(id="1", code="", ranks=(0,), folder=tmp_path, number=1, viewed=True)
    job.log(0).write_text("the rest\n")
    job.parts = {0: (0, len("the rest\n"))}
    output = Counted(job, "rank0")
    output.begin()
    for number in range(BACKLOG):
        job.tell(f"{number}", "before")
    watched: Any = SimpleNamespace()  # it is not asked any more
    watch = Watch(job, output, 60.0, watched)
    showing = asyncio.get_running_loop().create_task(watch.show_rest())
    await until(lambda: output.tries > 1)
    assert job.events.qsize() == BACKLOG
    assert all(isinstance(job.next_event(), Notice) for _ in range(BACKLOG))
    await asyncio.wait_for(showing, allowed(20))
    assert "the rest" in repr(job.next_event())


async def test_a_cell_of_the_kernel_is_stopped_by_its_interrupt_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs the cell is a stand-in."""
    monkeypatch.setattr(kernel_run, "STUCK_SECONDS", 0.0)
    stopped: list[str] = []
    runner: Any = SimpleNamespace(
        job="", interrupt=stopped.append, doing=lambda job: Pulse(job, 1, "", None, Vitals(0))
    )
    job = Job(id="1", code="", ranks=(0,), folder=tmp_path, number=1)
    signals = Signals()
    run = InsideRun(job, "rank0", None, 60.0, runner, signals)
    try:
        await run.begin()
        signals._written.send(bytes([signal.SIGTERM]))
        run._on_signal()
        assert not run.failed()
        assert not stopped
        signals._written.send(bytes([signal.SIGINT]))  # before its cell has begun
        run._on_signal()
        assert run.failed()
        assert stopped == ["1"]
        await until(lambda: job.reports)
        first, runner.job = run._stuck_at, "1"
        signals._written.send(bytes([signal.SIGINT]))  # Python's own handler stops it now
        run._on_signal()
        run._tell_stuck(first + 1)
        assert run._stuck_at == first
        await asyncio.wait_for(run.end(Done("1", 0), 1.0), allowed(20))
        run.press(INTERRUPT)  # which may be on its way when the cell ends
        assert stopped == ["1"]
        assert job.reports[0].startswith("It has reacted after ")
    finally:
        signals.close()


def test_a_wait_for_the_hub_ends_at_its_time_limit() -> None:
    future: futures.Future[int] = futures.Future()
    with pytest.raises(futures.TimeoutError):
        hub_loop._result(future, 0.01)
    future.set_result(7)
    assert hub_loop._result(future, 0.0) == hub_loop._result(future, None) == 7
