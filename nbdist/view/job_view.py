"""Collects what a view shows of a live job: loops, ranks, curves. Without drawing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from nbdist.job import rows
from nbdist.job.named_ranks import name_ranks
from nbdist.machine.amounts import counted
from nbdist.metrics.points_file import points_file
from nbdist.view.panels import Panel, panels, resource_panels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbdist.job.job import Job
    from nbdist.job.rows import BarRow, RankRow
    from nbdist.metrics.job_metrics import Metrics

MOST_NAMED = 6


class Seen(NamedTuple):
    """Everything that a view shows of a job."""

    title: str
    state: str
    seconds: float
    bars: list[BarRow]
    straggler: str
    ranks: list[RankRow]
    panels: list[Panel]
    note: str
    folder: str = ""
    """The name of the job's folder, which with the job's id identifies the job for the server."""
    job: str = ""
    resources: Sequence[Panel] = ()
    """The ranks' use of resources, second by second."""
    began: float = 0.0
    """When the ranks began, in seconds since 1970; 0 if unknown."""


def has_something(job: Job) -> bool:
    """Whether a job has logged anything or shows a progress bar."""
    return any(not bar.tqdm for pulse in list(job.pulses.values()) for bar in pulse.bars) or any(
        points_file(job.folder, job.id, rank).exists()
        for rank in job.ranks
        if rank not in job.unlogged
    )


def look(job: Job) -> Seen:
    """Return the present state of a job, with its metrics as of the last `Metrics.read`."""
    job.resources.read()
    for curve in (*job.metrics.curves(), *job.resources.curves()):
        curve.forget_last(job.gone)
    shown, further = panels(job.metrics.curves())
    pulses = dict(job.pulses)
    began = job.began or job.created
    return Seen(
        f"Job {job.id} on {name_ranks(job.ranks)}",
        job.state,
        time.time() - began if job.seconds is None else job.seconds,
        rows.bars(pulses),
        rows.straggler(pulses),
        [rows.row(job, rank, pulses.get(rank)) for rank in job.ranks],
        shown,
        ". ".join(
            note
            for note in (unreadable(job.metrics), left_out([*further, *job.metrics.further()]))
            if note
        ),
        job.folder.name,
        job.id,
        resources=resource_panels(job.resources.curves()),
        began=began,
    )


def unreadable(*sources: Metrics) -> str:
    """Name the ranks whose files cannot be read; '' if all can be read."""
    broken = {rank: why for source in sources for rank, why in source.broken.items()}
    if not broken:
        return ""
    whose = name_ranks(tuple(sorted(broken)))
    return f"Metrics of {whose} cannot be read: {next(iter(broken.values()))}"


def left_out(names: list[str]) -> str:
    """Name the metrics for which there is no room."""
    if not names:
        return ""
    more = ", …" if len(names) > MOST_NAMED else ""
    listed = ", ".join(names[:MOST_NAMED])
    return f"{counted(len(names), 'more metric')} in job.metrics: {listed}{more}"
