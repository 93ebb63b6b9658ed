"""Repairs the cluster after a job that failed, and reports what was lost."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.hub.asking import group_standing, rank_equality
from nbdist.hub.link import forming
from nbdist.hub.running.life_cycle import stopped
from nbdist.job import report
from nbdist.job.gpu_failures import gpu_failure
from nbdist.job.named_ranks import name_ranks

if TYPE_CHECKING:
    import asyncio

    from nbdist.hub.hub import Hub
    from nbdist.job.job import Job
    from nbdist.job.states import Stop

FULL = 1 << 16
"""With fewer bytes free on the disk, a cell may have failed because the disk is full."""


async def settle(
    hub: Hub, job: Job, why: Stop | None, pressed: asyncio.Event | None = None
) -> NbdistError | None:
    """Make the cluster usable again: renew groups that broke, and report models that differ.

    Parameters
    ----------
    hub, job
        The cluster, and the job that has just ended on it.
    why
        Why it was stopped, None if it was not.
    pressed
        Set when the user does not want to wait any longer.

    Returns
    -------
    NbdistError or None
        The job's error; None if its code caught the interrupt and finished.
    """
    if why is not None and why.by == "cluster":
        hub.stale = hub.uncompared = True
        errors, job.errors = job.errors, {}
        return stopped(job, why) if errors else None
    for rank, fault in job.errors.items():
        # Forming the group with it would fail on all ways, and might end its process.
        hub.ranks[rank].spoilt |= bool(gpu_failure(job, rank, fault))
    told = await group_standing.after(hub, job)
    hub.stale |= told is None
    if told is None or not group_standing.at_one_point(hub, job, told):
        hub.uncompared = True
        hub.failed.add(job.id)
    await _renew(hub, job, pressed)
    _tell_of_losses(hub, job)
    if not job.errors:
        for note in job.notes:
            job.tell(note, note)
        return None
    if why is not None:
        return stopped(job, why)
    job.state = "failed"
    return report.failure(job)


async def _renew(hub: Hub, job: Job, pressed: asyncio.Event | None) -> None:
    """Renew the groups and compare the ranks, as far as needed, and if no other job uses them."""
    dead = any(not rank.sound for rank in hub.ranks.values())
    async with hub.mending:
        if hub.stale and not dead and hub.begun == {job.id}:
            try:
                await forming.form(hub)
            except NbdistError as err:
                job.notes.append(str(err))
            job.notes += forming.drain(hub)
        if not hub.uncompared:
            return
        job.notes += await rank_equality.compare(
            hub, lambda text: job.tell(text, text, warns=False), pressed
        )


def _tell_of_losses(hub: Hub, job: Job) -> None:
    dead = [rank.rank for rank in hub.ranks.values() if not rank.sound]
    spoilt = [rank for rank in dead if hub.ranks[rank].spoilt]
    ends = [rank.death for rank in hub.ranks.values() if rank.death is not None]
    if hub.sharing == "gloo" and any(end.signum == signal.SIGSEGV for end in ends):
        job.notes.append(
            "If the rank was in `full_tensor()` of a tensor on the GPU, or gathered a model's "
            "whole state: torch crashes there under gloo, which ranks that share a GPU use. "
            "`.cpu().full_tensor()` works."
        )
    if _full(job):
        job.notes.append(
            f"The disk with the ranks' logs is full ({job.folder}); NBDIST_HOME sets another "
            "folder for logs."
        )
    if hub.host.warm.gone.is_set():
        dead = []
        job.notes.append(
            f"The cluster's warm process, the parent of its ranks, {hub.host.warm.end}, and all "
            "ranks with it; the next cell "
            "starts a new cluster."
        )
    living = min((rank.rank for rank in hub.ranks.values() if rank.sound), default=None)
    if living is None and dead:
        job.notes.append(
            f"{_off_gpu(spoilt)}All ranks will be restarted before the next cell, without their "
            "variables."
        )
        return
    for rank in dead:
        job.notes.append(
            _off_gpu([rank] if rank in spoilt else [])
            + f"Rank {rank} will be restarted before the next cell, without its variables; "
            f"`%dist restart {rank} --like {living}` restarts it with a copy of rank {living}'s."
        )


def _off_gpu(ranks: list[int]) -> str:
    """Say what these ranks have lost, whose processes cannot use their GPU any more."""
    return f"All that {name_ranks(ranks)} had on the GPU is lost. " if ranks else ""


def _full(job: Job) -> bool:
    try:
        return shutil.disk_usage(job.folder).free < FULL
    except OSError:  # the folder was removed
        return False
