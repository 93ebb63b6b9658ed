"""What there is to see of a job whose record somebody has read: the Jupyter server's view of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nbdist.job.job import name_ranks
from nbdist.job.rows import BarRow, RankRow
from nbdist.published.state_file import KEEPER, JobRecord, RankRecord
from nbdist.view.job_view import Seen, left_out, unreadable
from nbdist.view.panels import Panel, panels, resource_panels

if TYPE_CHECKING:
    from nbdist.metrics.job_metrics import Metrics
    from nbdist.published.state_file import BarRecord

RUNNING, LOST, UNKNOWN = "running", "lost", "unknown"
"""Whether whoever runs a job does so, has died, or says nothing of the job any more."""


class Known(NamedTuple):
    """A job's record, and how its process stands."""

    job: JobRecord
    process: str
    """The id of the process that has told of it."""
    kind: str
    """kernel or keeper."""
    pid: int
    stands: str
    """`RUNNING`, `LOST` or `UNKNOWN`."""
    left: int | None
    """Of a process that has died, how many of its ranks still run; None if nobody knows."""
    at: float
    """When it was told last, in seconds since 1970."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The job's ranks."""
        return tuple(rank.rank for rank in self.job.ranks)

    @property
    def over(self) -> bool:
        """Whether there is no more to come."""
        return self.ended or self.stands == LOST

    @property
    def ended(self) -> bool:
        """Whether the job's end is known."""
        return self.job.state not in ("queued", "running")

    def left_behind(self, *, runs: bool) -> Known:
        """Return what is known of it when nobody tells of it any more.

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
        # It has left no file: it has ended in good order, or its file was cleared away.
        return self._replace(stands=LOST, left=None, pid=0)


def seen_of(known: Known, metrics: Metrics, resources: Metrics) -> Seen:
    """Return how a job stands, its metrics and resources as of the last `Metrics.read`."""
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
    if job.seconds is not None or known.ended:  # it may have ended before it began
        return job.seconds or 0.0
    until = time.time()
    if known.stands != RUNNING:  # its last sign of life
        logged = [curve.line.times.max(initial=0) for panel in shown for _, curve in panel.curves]
        until = max([known.at, *map(float, logged)])
    return max(0.0, until - (job.began or job.created))


def _unseen(known: Known) -> str:
    """Say that there are no curves because nothing can be read, '' if it can."""
    if known.job.state == "queued" or Path(known.job.folder).is_dir():
        return ""
    return f"The files of job {known.job.id} cannot be seen from the Jupyter server"


def _why(known: Known) -> str:
    """Say why a job's end is not known."""
    if known.stands == UNKNOWN:
        return "Showing last known state"
    who = "Keeper of the detached job" if known.kind == KEEPER else "Kernel"
    told = f"{who} died (pid {known.pid})" if known.pid else f"{who} has ended"
    if known.left == 0:
        told += ": all ranks exited"
    elif known.left:
        told += f": {known.left} rank{'s' * (known.left > 1)} still running"
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
