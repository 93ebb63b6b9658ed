"""Finds jobs by the ids that a line of ``%dist`` names."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.notebook import detached_jobs
from nbdist.notebook.session import session

if TYPE_CHECKING:
    from nbdist.job.job import Job


def find_job(id_: str | None) -> Job:
    """Return the job with this id, also one that was detached; the notebook's last by default."""
    known = session.jobs()
    if id_ is None and known:
        return known[-1]
    if id_ is None:
        raise UsageMistake("no cell has run yet")
    for job in known:
        if job.id == id_:
            return job
    with suppress(UsageError):
        return detached_jobs.handle(id_)
    raise UsageMistake(f"there is no job {id_}; %dist jobs lists them")


def offer_jobs(begun: str) -> list[str]:
    """Return the ids of all jobs: detached jobs, then the notebook's, each latest first."""
    return [*offer_detached(begun), *(job.id for job in reversed(session.jobs()))]


def offer_detached(begun: str) -> list[str]:
    """Return the ids of detached jobs, the latest first."""
    del begun  # the caller selects the ids that fit
    return [kept.id for kept, _ in reversed(detached_jobs.listed()[0])]
