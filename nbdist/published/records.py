"""Makes the records of clusters and jobs that other processes read. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.job import rows
from nbdist.job.deaths import how_died
from nbdist.machine.quoted_code import plain
from nbdist.metrics.last_values import Last
from nbdist.published.state_file import BarRecord, JobRecord, RankRecord

if TYPE_CHECKING:
    from nbdist.hub.link.ranks import Rank
    from nbdist.job.job import Job
    from nbdist.job.states import JobState, RankState
    from nbdist.published.state_file import ShownState

LONGEST = 1000
"""The most characters of a line, as the file is written several times a second."""
MOST_REPORTS = 20
_STATES: dict[JobState, RankState] = {"queued": "starting", "running": "busy"}


def rank_of_cluster(rank: Rank) -> RankRecord:
    """Return the record of a persistent rank."""
    words = "running" if rank.state == "busy" else rank.state
    told = RankRecord(
        rank.rank, rank.state, words, host=rank.host, pid=rank.pid, device=rank.device,
        created=rank.created,
    )  # fmt: skip
    if rank.death is not None:
        told.words = how_died(rank.death)
    elif rank.pulse is not None:
        taken = rank.pulse.vitals
        told.state, told.words, told.line = "busy", rows.doing(rank.pulse), rank.pulse.line
        told.cpu, told.memory = taken.cpu, taken.rss
        told.gpu, told.gpu_memory = taken.gpu, taken.gpu_memory
    else:  # also while idle, because it shows who fills a GPU
        told.gpu_memory = rank.gpu_memory
    return told


class ShownJob:
    """A published job, with its last metrics.

    Parameters
    ----------
    job
        The job.
    launcher
        The launcher of its ranks.
    cluster
        The id of its cluster, '' if it has its own ranks.
    detached
        Whether it outlives its kernel.
    """

    def __init__(
        self, job: Job, launcher: str, cluster: str = "", *, detached: bool = False
    ) -> None:
        self.job = job
        self._launcher, self._cluster, self._detached = launcher, cluster, detached
        self._last = Last(job.folder, job.id, job.ranks[0])
        self._ended: JobRecord | None = None

    def record(self) -> JobRecord:
        """Return the present record."""
        if self._ended is not None:
            return self._ended
        over = self.job.done  # read first: nothing changes after the end
        record = self._record()
        if over:
            self._ended = record
        return record

    def _record(self) -> JobRecord:
        job, pulses = self.job, dict(self.job.pulses)
        state: ShownState = _STATES.get(job.state) or job.state
        if job.seconds is not None:
            state = "ended"
        return JobRecord(
            id=job.id, number=job.number, state=job.state,
            ranks=[_rank(rows.row(job, rank, pulses.get(rank)), state) for rank in job.ranks],
            first_line=next((_short(line) for line in job.code.splitlines() if line.strip()), ""),
            launcher=self._launcher, cluster=self._cluster, created=job.created, began=job.began,
            seconds=job.seconds, told=_short(plain(job.told())),
            reports=[_short(plain(text)) for text in job.reports[-MOST_REPORTS:]],
            straggler=rows.straggler(pulses),
            bars=[
                BarRecord(
                    bar.label, bar.done, bar.total, bar.rate, bar.samples, bar.left, bar.still
                )
                for bar in rows.bars(pulses)
            ],
            metrics=self._last.values(), detached=self._detached, folder=str(job.folder),
            parts=dict(job.parts),
        )  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _rank(row: rows.RankRow, state: ShownState) -> RankRecord:
    return RankRecord(
        row.rank, state, row.state, host=row.host, device=row.device, cpu=row.cpu,
        memory=row.memory, gpu=row.gpu, gpu_memory=row.gpu_memory, step=row.step,
    )  # fmt: skip
