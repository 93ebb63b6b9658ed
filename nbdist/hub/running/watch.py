"""Watches a job while it runs: follows its output and reports hangs. Hub's thread."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from nbdist.hub.running import hang_report
from nbdist.job.file_growth import Growth
from nbdist.machine.amounts import in_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nbdist.job.job import Job
    from nbdist.wire.messages import Display, Pulse

LOOK_SECONDS = 0.01
"""How often the shown ranks' logs are looked at while they grow, or nobody tells that they do."""
WRITE_SECONDS = 0.005
"""Whoever has begun to write has so long to go on: Python writes a line and its end apart."""
LOOK_AT_RANKS_SECONDS = 0.5
SHORT_SECONDS = 0.25
"""For a job that is over by then it is not worth asking to be told."""


class Output(Protocol):
    """What becomes of a job's output: `nbdist.job.output`, or `nbdist.detached.job_story`."""

    def begin(self) -> None:
        """Begin where the job's part of each log begins."""

    def display(self, display: Display) -> None:
        """Show this as soon as the log before it has been shown."""

    def quiet(self) -> None:
        """Leave out what ranks complain of from now on, having been cut off on purpose."""

    def look(self) -> bool:
        """Pass on what is new; return whether there is more, which should wait a moment."""

    def logs(self) -> list[Path]:
        """Return the files that it reads."""

    def finish(self) -> bool:
        """Pass on all up to the job's end; False if the viewer is too far behind for it."""


class Watched(Protocol):
    """What runs the job."""

    def running(self) -> dict[int, Pulse | None]:
        """Return the last word of every rank that still runs."""

    def ended(self) -> set[int]:
        """Return the ranks whose part is over."""

    def failed(self) -> bool:
        """Whether it was stopped, or a rank has failed."""

    def looked(self) -> None:
        """Do what else is to be done now and then."""


class Watch:
    """Follows one job.

    Parameters
    ----------
    job, output
        What is followed, and where its output goes.
    patience
        Seconds ranks may wait for each other before that is told.
    watched
        Knows its ranks.
    outside
        Ranks of the cluster that have no part in the job.
    far
        Whether other hosts write logs: of what they write nobody is told.
    """

    def __init__(
        self, job: Job, output: Output, patience: float, watched: Watched,
        outside: Sequence[int] = (), *, far: bool = False,
    ) -> None:  # fmt: skip
        self._job, self._output, self._patience, self._watched = job, output, patience, watched
        self._outside, self._far = outside, far
        self._growth = Growth()
        self._hang = ""
        self._hang_began = 0.0

    async def run(self) -> None:
        """Follow the job until cancelled."""
        try:
            await self._follow()
        finally:
            self._growth.close()

    async def _follow(self) -> None:
        clock = asyncio.get_running_loop().time
        told_from, look_at = clock() + SHORT_SECONDS, clock() + LOOK_AT_RANKS_SECONDS
        more, now = True, clock()
        while True:
            if more or now < told_from or self._far or not self._growth.sees(self._output.logs()):
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await self._growth.wait(look_at - now)
                await asyncio.sleep(WRITE_SECONDS)
            more, now = self._output.look(), clock()
            if now >= look_at:
                look_at = now + LOOK_AT_RANKS_SECONDS
                self._look_for_hang()
                self._watched.looked()

    def wake(self) -> None:
        """Look at once: there is something to pass on that no log tells of."""
        self._growth.wake()

    def _look_for_hang(self) -> None:
        running, ended = self._watched.running(), self._watched.ended()
        text = hang_report.describe(
            running, ended, self._patience, self._job.stop_by, self._outside
        )
        if text and not self._hang:
            self._hang_began = time.monotonic() - self._patience
        if text != self._hang:
            self._job.report("hang", text or self._resolved(), warns=bool(text))
            self._hang = text

    def _resolved(self) -> str:
        hung = in_time(round(time.monotonic() - self._hang_began))
        if self._job.errors or self._watched.failed():
            return f"The possible hang ended with the cell, after {hung}."
        return f"Resolved after {hung}: the ranks no longer wait for each other."

    async def show_rest(self) -> None:
        """Show what the ranks printed to the end, at the pace of the viewer."""
        while not self._output.finish() and self._job.viewed:
            await asyncio.sleep(LOOK_SECONDS)
        if self._hang:
            self._job.report("hang", self._resolved(), warns=False)
