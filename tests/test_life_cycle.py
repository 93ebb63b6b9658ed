"""A job ends whatever happens to it, and its end is told (a run of its own; no ranks)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nbdist.errors import Interrupted, LaunchError, NbdistError
from nbdist.hub.running.life_cycle import JobRun
from nbdist.job.job import Job
from nbdist.job.output import Output
from nbdist.job.states import INTERRUPT, WITH_CLUSTER, Stop
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nbdist.wire.messages import Pulse


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
