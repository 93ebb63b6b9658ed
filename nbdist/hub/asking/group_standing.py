"""Asks the ranks whether a cell that failed has broken anything. Hub's thread.

Most cells fail by a mistake that is the same on all ranks, outside of any collective. Renewing the
groups would then reset what lives between cells: a pending backward pass, accumulated gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.wire.messages import Fault
from nbdist.wire.rank_calls import SettleCell, TryGroups

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub
    from nbdist.job.job import Job
    from nbdist.wire.group_reports import Standing
    from nbdist.wire.rank_calls import Answer, Call

ANSWER_SECONDS = 20.0
"""Time limit for an answer: it is quick, but the rank may be busy."""

Standings = dict[int, "Standing"]


async def after(hub: Hub, job: Job) -> Standings | None:
    """Let the ranks of a job settle, and return how their groups stand; None if anything broke.

    None is also returned if it cannot be known.
    """
    living = [rank for rank in job.ranks if hub.ranks[rank].sound]
    told = await _from_all(hub, living, SettleCell())
    if told is None or hub.stale or len(living) < len(job.ranks):
        return None
    if any(one.broken for one in told.values()) or not _agree(told):
        return None
    touched = any(one.count or any(one.used.values()) for one in told.values())
    if not touched:
        return told
    if len(told) < hub.size or hub.begun != {job.id}:  # other ranks may be in these groups
        return None
    tried = await _from_all(hub, list(told), TryGroups())
    return told if tried is not None and all(tried.values()) else None


def at_one_point(hub: Hub, job: Job, told: Standings) -> bool:
    """Whether all ranks of the cluster failed alike, so that none is ahead of another.

    Then nothing has to be compared, which would read all models.
    """
    faults = [fault for fault in job.errors.values() if isinstance(fault, Fault)]
    if len(faults) < hub.size or any(fault.aborted for fault in faults):
        return False
    alike = len({(fault.name, fault.line) for fault in faults}) == 1
    return alike and len({(tuple(one.steps), one.changed) for one in told.values()}) == 1


def _agree(told: Standings) -> bool:
    """Whether the ranks have begun as many of the same operations in each group they share."""
    names = {name for one in told.values() for name in one.used}
    for name in names:
        mine = [one for one in told.values() if name in one.used]
        if len({(one.used[name], tuple(one.last.get(name, ()))) for one in mine}) > 1:
            return False
    return len({one.count for one in told.values()}) == 1


async def _from_all(hub: Hub, ranks: list[int], call: Call[Answer]) -> dict[int, Answer] | None:
    """Return the answers of all these ranks; None if one does not answer."""
    answers = await hub.call_all(ranks, call, timeout=ANSWER_SECONDS)
    found: dict[int, Answer] = {}
    for rank, answer in answers.items():
        if isinstance(answer, NbdistError):
            return None
        found[rank] = answer
    return found
