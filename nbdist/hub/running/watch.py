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
"""How often the shown ranks' logs are read while they grow, or if growth is not notified."""
WRITE_SECONDS = 0.005
"""The wait after a first write: Python writes a line and its end separately."""
LOOK_AT_RANKS_SECONDS = 0.5
SHORT_SECONDS = 0.25
"""Shorter jobs do without notifications of growth."""


class Output(Protocol):
    """Receives a job's output: `nbdist.job.output`, or `nbdist.detached.job_story`."""

    def begin(self) -> None:
        """Start at the job's part of each log."""

    def display(self, display: Display) -> None:
        """Show a display after the part of the log before it."""

    def quiet(self) -> None:
        """Leave out torch's messages about connections that we cut from now on."""

    def look(self) -> bool:
        """Forward new output; return whether there is more, for a moment later."""

    def logs(self) -> list[Path]:
        """Return the log files that are read."""

    def finish(self) -> bool:
        """Forward all output to the job's end; return False if the viewer is too slow for it."""


class Watched(Protocol):
    """The run of a job, as `Watch` sees it."""

    def running(self) -> dict[int, Pulse | None]:
        """Return the last report of every running rank."""

    def ended(self) -> set[int]:
        """Return the ranks that have ended, and have not failed."""

    def failed(self) -> bool:
        """Whether the job was stopped or a rank has failed."""

    def looked(self) -> None:
        """Do further periodic work."""


class Watch:
    """Watches one job.

    Parameters
    ----------
    job, output
        The job, and the receiver of its output.
    patience
        Seconds that ranks may wait for each other before a hang is reported.
    watched
        The run of the job.
    outside
        Ranks of the cluster that do not run the job.
    far
        Whether other hosts write logs, whose growth is not notified.
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
        """Watch the job until cancelled."""
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
        """Look at once, for output that is not in a log."""
        self._growth.wake()

    def _look_for_hang(self) -> None:
        if self._watched.failed():  # who waits now, or is gone, was stopped or has lost a rank
            return
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
        if self._watched.failed():
            return f"The possible hang ended with the cell, after {hung}."
        return f"Resolved after {hung}: the ranks no longer wait for each other."

    async def show_rest(self) -> None:
        """Show the rest of the ranks' output, at the viewer's pace."""
        while not self._output.finish() and self._job.viewed:
            await asyncio.sleep(LOOK_SECONDS)
        if self._hang:
            self._job.report("hang", self._resolved(), warns=False)
