"""The life-cycle that all kinds of jobs share: prepare, begin, watch, end. Hub's thread.

Each kind of run (`cell_run`, `script_run`, `kernel_run`) adds only what differs. A cell in the
kernel itself begins and ends by calls of the kernel's main thread, and shares what is between.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from nbdist.errors import NbdistError
from nbdist.hub.running.watch import Watch
from nbdist.job import report
from nbdist.job.states import INTERRUPT, Stop

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager

    from nbdist.errors import Interrupted
    from nbdist.hub.running.watch import Output
    from nbdist.job.job import Job
    from nbdist.wire.messages import Pulse

T = TypeVar("T")


class Stopped(Exception):
    """The job was stopped before it had begun."""


class Press:
    """The wish that a job stop, and each further wish, which hurries the stop."""

    def __init__(self) -> None:
        self.why: Stop | None = None
        """The first reason; None until there is one."""
        self.event = asyncio.Event()
        """Set by each wish; a step of the stop clears it, and ends when it is set again."""

    def press(self, why: Stop) -> None:
        """Take note of a wish."""
        self.why = self.why or why
        self.event.set()

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raise `Stopped` if the job is stopped before."""
        loop = asyncio.get_running_loop()
        ready, pressed = loop.create_task(work), loop.create_task(self.event.wait())
        await asyncio.wait({ready, pressed}, return_when=asyncio.FIRST_COMPLETED)
        pressed.cancel()
        if self.why is None:
            return await ready
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)  # the cancelled work cleans up
        raise Stopped


class Followed(ABC):
    """A job that is watched while it runs.

    Parameters
    ----------
    job, output
        The job, and where its output goes.
    timeout
        Seconds after which the job is stopped; None for no limit.
    patience, outside, far
        As in `nbdist.hub.running.watch.Watch`.
    """

    def __init__(
        self, job: Job, output: Output, *, timeout: float | None, patience: float,
        outside: Sequence[int] = (), far: bool = False,
    ) -> None:  # fmt: skip
        self._job, self._output, self._timeout = job, output, timeout
        self._watch = Watch(job, output, patience, self, outside, far=far)
        self._press = Press()
        self._following: list[asyncio.Task[None] | asyncio.TimerHandle] = []

    def _begin(self) -> None:
        """Let the job's time run, and follow what it does."""
        loop = asyncio.get_running_loop()
        self._job.began, self._job.state = time.time(), "running"
        self._following.append(loop.create_task(self._watch.run()))
        if self._timeout is not None:
            self._following.append(loop.call_later(self._timeout, self._time_is_up, self._timeout))

    def _time_is_up(self, limit: float) -> None:
        """Stop the job, if it is not being stopped: only a person's wish hurries a stop."""
        if self._press.why is None:
            self.press(Stop("timeout", limit))

    def _follow_no_more(self) -> None:
        for each in self._following:
            each.cancel()

    @abstractmethod
    def press(self, why: Stop) -> None:
        """Stop the job, or hurry a stop that is under way."""

    @abstractmethod
    def running(self) -> dict[int, Pulse | None]:
        """See `nbdist.hub.running.watch.Watched`."""

    @abstractmethod
    def ended(self) -> set[int]:
        """See `nbdist.hub.running.watch.Watched`."""

    def failed(self) -> bool:
        """See `nbdist.hub.running.watch.Watched`."""
        return self._press.why is not None or bool(self._job.errors)

    def looked(self) -> None:  # noqa: B027  # most have nothing else to do
        """See `nbdist.hub.running.watch.Watched`."""


class JobRun(Followed):
    """Takes one job from its turn to its end."""

    async def run(self) -> None:
        """Take the job through; it has ended when this returns, whatever happened."""
        job = self._job
        error: NbdistError | None
        try:
            async with self._turn():
                error = await self._live()
        except (Stopped, asyncio.CancelledError):
            error = stopped(job, self._press.why or INTERRUPT)
        except NbdistError as err:
            job.state, error = "failed", err
        except (Exception, SystemExit) as err:  # a fault of ours must end the job, not hang it
            job.state, error = "failed", self._fault(err)
        finally:
            self._clear_away()
        job.end(error)

    async def _live(self) -> NbdistError | None:
        await self._prepare()
        if self._press.why is not None:
            raise Stopped
        began = time.monotonic()
        self._begin()
        try:
            await self._work()
        finally:
            self._follow_no_more()
            self._job.seconds = time.monotonic() - began
        await self._watch.show_rest()
        return await self._outcome()

    @abstractmethod
    def _turn(self) -> AbstractAsyncContextManager[None]:
        """Wait until the job may be prepared; hold what it needs until it has ended."""

    @abstractmethod
    async def _prepare(self) -> None:
        """Make ready what the job needs; raise `Stopped` if it is stopped meanwhile."""

    @abstractmethod
    async def _work(self) -> None:
        """Start the job, and wait until all its ranks have ended, stopped if need be."""

    @abstractmethod
    async def _outcome(self) -> NbdistError | None:
        """Set the state in which the job has ended; return its error."""

    @abstractmethod
    def _clear_away(self) -> None:
        """Free what the job has held, however it has ended."""

    def _fault(self, err: BaseException) -> NbdistError:
        """Return the error to report for an unexpected exception."""
        error = NbdistError(f"nbdist itself failed: {type(err).__name__}: {err}")
        error.__cause__ = err
        return error


def stopped(job: Job, why: Stop) -> Interrupted:
    """Set the state of a job that was stopped; return its error."""
    job.state = why.state
    return report.interrupted(job, why)
