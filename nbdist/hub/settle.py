"""After a job that did not end well: a cluster that can be used, and what became of it told."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.hub import forming, report
from nbdist.hub.jobs import WITH_CLUSTER

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub
    from nbdist.hub.jobs import Job

FULL = 1 << 16
"""Bytes; with fewer left on the disk a cell that failed may have failed for it."""


async def settle(hub: Hub, job: Job, why: str) -> NbdistError:
    """Leave the cluster usable: fresh groups, and word of models that no longer agree.

    Parameters
    ----------
    hub, job
        The cluster, and the job that has just ended on it.
    why
        Why it was stopped, '' if it was not.

    Returns
    -------
    NbdistError
        How it ended, in words.
    """
    hub.stale = True
    if why == WITH_CLUSTER:
        job.state, job.errors = "interrupted", {}
        return report.interrupted(job, why)
    dead = [rank for rank in hub.ranks.values() if not rank.alive]
    async with hub.mending:
        if not dead and hub.begun == {job.id}:
            try:
                await forming.form(hub)
                job.notes += await _disagreements(hub)
            except NbdistError as err:
                job.notes.append(str(err))
            job.notes += forming.drain(hub)
    if _full(job):
        job.notes.append(
            f"The disk with the ranks' logs is full ({job.folder}); NBDIST_HOME names another "
            "place for them."
        )
    if hub.host.warm.gone.is_set():
        dead = []
        job.notes.append(
            "The cluster's warm process has died, and all ranks with it; the next cell starts "
            "a new cluster."
        )
    for rank in dead:
        job.notes.append(
            f"Rank {rank.rank} will be replaced before the next cell, without its variables; "
            f"`%dist restart {rank.rank} --like {_other(hub, rank.rank)}` replaces it and "
            "copies them from another rank."
        )
    if why:
        job.state = "timed out" if "--timeout" in why else "interrupted"
        return report.interrupted(job, why)
    job.state = "failed"
    return report.failure(job)


def _full(job: Job) -> bool:
    try:
        return shutil.disk_usage(job.folder).free < FULL
    except OSError:  # somebody has removed the folder
        return False


async def _disagreements(hub: Hub) -> list[str]:
    if hub.backend == "none":
        return []
    answers = await hub.call_all(hub.ranks, "checksums", timeout=1.0)
    digests: dict[str, set[str]] = {}
    for answer in answers.values():
        for name, digest in (answer if isinstance(answer, dict) else {}).items():
            digests.setdefault(name, set()).add(digest)
    parted = sorted(name for name, found in digests.items() if len(found) > 1)
    if not parted:
        return []
    listed = ", ".join(f"`{name}`" for name in parted)
    note = (
        f"No longer equal on all ranks, which stopped at different points of a step: {listed}. "
        f"`%dist sync {' '.join(parted)} --from 0` makes them equal."
    )
    return [note]


def _other(hub: Hub, rank: int) -> int:
    return min((other for other in hub.ranks if other != rank), default=rank)
