"""Collects what a view shows of a job, from the state file: the Jupyter server's view."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from nbdist.job.named_ranks import name_ranks
from nbdist.job.rows import BarRow, RankRow
from nbdist.job.states import ENDED
from nbdist.machine.amounts import counted
from nbdist.published.state_file import KEEPER, JobRecord, RankRecord
from nbdist.view.job_view import Seen, left_out, unreadable
from nbdist.view.panels import Panel, panels, resource_panels

if TYPE_CHECKING:
    from nbdist.metrics.job_metrics import Metrics
    from nbdist.published.state_file import BarRecord

RUNNING: Final = "running"
LOST: Final = "lost"
UNKNOWN: Final = "unknown"
Stands = Literal["running", "lost", "unknown"]
"""The process that runs a job is running, has died, or no longer reports the job."""


class Known(NamedTuple):
    """A job's record, with the state of the process that runs it."""

    job: JobRecord
    process: str
    """The id of the process that has published the record."""
    kind: Literal["kernel", "keeper"]
    pid: int
    stands: Stands
    left: int | None
    """How many ranks of a dead process still run; None if unknown."""
    at: float
    """When the record was published last, in seconds since 1970."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The job's ranks."""
        return tuple(rank.rank for rank in self.job.ranks)

    @property
    def over(self) -> bool:
        """Whether no more news of the job will come."""
        return self.ended or self.stands == LOST

    @property
    def ended(self) -> bool:
        """Whether the job's end is known."""
        return self.job.state in ENDED

    def left_behind(self, *, runs: bool) -> Known:
        """Return the state of the job after its record has disappeared.

        Parameters
        ----------
        runs
            Whether its process still runs.
        """
        if self.ended:
            return self
        if self.stands == LOST:
            return self._replace(left=None)
        if runs:
            return self._replace(stands=UNKNOWN, left=None)
        # Without a file the process has ended normally, or its file was removed.
        return self._replace(stands=LOST, left=None, pid=0)


def seen_of(known: Known, metrics: Metrics, resources: Metrics) -> Seen:
    """Return the state of a job, with metrics and resources as of the last `Metrics.read`."""
    job = known.job
    shown, further = panels(metrics.curves())
    goes_on = known.ended or known.stands == RUNNING
    notes = [
        "" if goes_on else _why(known),
        _unseen(known) or unreadable(metrics, resources),
        left_out([*further, *metrics.further()]),
    ]
    return Seen(
        f"Job {job.id} on {name_ranks(known.ranks)}",
        job.state if goes_on else known.stands,
        _seconds(known, shown),
        [_bar(depth, bar, goes_on=goes_on) for depth, bar in enumerate(job.bars)],
        job.straggler if goes_on else "",
        [_rank(rank, goes_on=goes_on) for rank in job.ranks],
        shown,
        ". ".join(note for note in notes if note),
        job.folder.rpartition("/")[2],
        job.id,
        resources=resource_panels(resources.curves()),
        began=job.began or job.created,
    )


def _seconds(known: Known, shown: list[Panel]) -> float:
    job = known.job
    if job.seconds is not None or known.ended:  # a job may end before it begins
        return job.seconds or 0.0
    until = time.time()
    if known.stands != RUNNING:  # the last sign of life counts
        logged = [curve.line.times.max(initial=0) for panel in shown for _, curve in panel.curves]
        until = max([known.at, *map(float, logged)])
    return max(0.0, until - (job.began or job.created))


def _unseen(known: Known) -> str:
    """Return a note if the job's files cannot be read, else ''."""
    if known.job.state == "queued" or Path(known.job.folder).is_dir():
        return ""
    return f"The files of job {known.job.id} cannot be seen from the Jupyter server"


def _why(known: Known) -> str:
    """Return a note about why the job's end is unknown."""
    if known.stands == UNKNOWN:
        return "Showing last known state"
    who = "Keeper of the detached job" if known.kind == KEEPER else "Kernel"
    told = f"{who} died (pid {known.pid})" if known.pid else f"{who} has ended"
    if known.left == 0:
        told += ": all ranks exited"
    elif known.left:
        told += f": {counted(known.left, 'rank')} still running"
    return f"{told}. Showing last known state"


def _bar(depth: int, bar: BarRecord, *, goes_on: bool) -> BarRow:
    if not goes_on:
        return BarRow(bar.label, depth, bar.done, bar.total, None, None, None, None)
    return BarRow(bar.label, depth, bar.done, bar.total, bar.rate, bar.samples, bar.left, bar.still)


def _rank(rank: RankRecord, *, goes_on: bool) -> RankRow:
    if not goes_on:
        return RankRow(
            rank.rank, rank.host, rank.device, f"last seen: {rank.words}", rank.step,
            None, None, None, None,
        )  # fmt: skip
    return RankRow(
        rank.rank, rank.host, rank.device, rank.words, rank.step, rank.cpu, rank.memory, rank.gpu,
        rank.gpu_memory,
    )  # fmt: skip
