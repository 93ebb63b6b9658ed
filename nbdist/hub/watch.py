"""A job while it runs: its output followed, its hangs told. Hub's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from nbdist.hub import hang

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbdist.hub.jobs import Job
    from nbdist.wire.messages import Display, Pulse

LOOK_SECONDS = 0.01
"""How often the shown ranks' logs are looked at."""
LOOKS_AT_RANKS = 50
"""The ranks themselves are looked at that much more seldom."""


class Output(Protocol):
    """What becomes of a job's output: `nbdist.hub.output`, or `nbdist.hub.story`."""

    def begin(self) -> None:
        """Begin where the job's part of each log begins."""

    def display(self, display: Display) -> None:
        """Show this as soon as the log before it has been shown."""

    def quiet(self) -> None:
        """Leave out what ranks complain of from now on, having been cut off on purpose."""

    def look(self) -> None:
        """Pass on what is new."""

    def finish(self) -> bool:
        """Pass on all up to the job's end; False if the viewer is too far behind for it."""


class Watched(Protocol):
    """What runs the job."""

    def running(self) -> dict[int, Pulse | None]:
        """Return the last word of every rank that still runs."""

    def ended(self) -> set[int]:
        """Return the ranks whose part is over."""

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
    """

    def __init__(
        self, job: Job, output: Output, patience: float, watched: Watched,
        outside: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._job, self._output, self._patience, self._watched = job, output, patience, watched
        self._outside = outside
        self._hang = ""

    async def run(self) -> None:
        """Follow the job until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._output.look()
            looks += 1
            if looks % LOOKS_AT_RANKS == 0:
                self._look_for_hang()
                self._watched.looked()

    def _look_for_hang(self) -> None:
        running, ended = self._watched.running(), self._watched.ended()
        text = hang.describe(running, ended, self._patience, self._job.stop_by, self._outside)
        if text != self._hang:
            self._job.tell("hang", text or "The wait is over.")
            self._hang = text

    async def show_rest(self) -> None:
        """Show what the ranks printed to the end, at the pace of the viewer."""
        while not self._output.finish() and self._job.viewed:
            await asyncio.sleep(LOOK_SECONDS)
        if self._hang:
            self._job.tell("hang", f"The wait is over after {self._job.seconds:.0f} s.")
