"""Makes a model or the like equal on all ranks, after these have agreed on what it is.

Hub's thread. Nothing is sent before the outlines of all ranks are the same: until then each rank
only answers, so that none can wait for another, and the process group stays whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import NbdistError, UsageError
from nbdist.hub.link import forming
from nbdist.hub.link.agent_connections import given
from nbdist.job.named_ranks import name_ranks, show_ranks
from nbdist.job.report import agree
from nbdist.machine.amounts import counted
from nbdist.wire.rank_calls import ListGroups, OutlineModel, SyncModel

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub
    from nbdist.wire.group_reports import Outline

QUOTES = " (if a key has quotes, put other quotes around the whole path: \"nets['a']\")"
MISSING = "missing"


async def sync(hub: Hub, path: str, source: int) -> list[int]:
    """Copy a model (or an optimizer, ...) from rank `source` to all ranks that have it.

    Returns
    -------
    list of int
        These ranks.
    """
    async with hub.turns.take(range(hub.size), "models that are made equal"):
        dead = [rank.rank for rank in hub.ranks.values() if not rank.sound]
        if dead:
            gone = "cannot use the GPU any more" if hub.ranks[dead[0]].alive else "is dead"
            msg = (
                f"{name_ranks(dead)} {agree(dead, gone)}, so that `{path}` cannot be made equal on "
                f"all ranks: run `%dist restart {show_ranks(dead)}` first"
            )
            raise UsageError(msg)
        if hub.stale:
            await forming.form(hub)
        outlines = await _outlines(hub, path, source)
        # Under the same name, another rank may have the model of another group.
        shared = _sharers(outlines[source], hub)
        members = [rank for rank in sorted(outlines) if rank in shared]
        lacking = [rank for rank in hub.ranks if rank not in outlines]
        group = "" if len(members) == hub.size else await _group_of(hub, path, members, lacking)
        if why := _difference(path, source, {rank: outlines[rank].parts for rank in members}):
            raise UsageError(f"{_unchanged(path)}: {why}")
        for rank in members:
            others = _sharers(outlines[rank], hub)
            why = outlines[rank].why
            if others != shared:
                here, there = name_ranks(shared), name_ranks(others)
                why = f"it belongs to {here} on rank {source}, and to {there} on rank {rank}"
            if why:
                raise UsageError(f"{_unchanged(path)}: {why}")
        await hub.demand(members, SyncModel(path, source, group))
        return members


async def _outlines(hub: Hub, path: str, source: int) -> dict[int, Outline]:
    """Return the outline of the object on each rank that has it."""
    if source not in hub.ranks:
        raise UsageError(f"there is no rank {source}; this cluster has {counted(hub.size, 'rank')}")
    found = {}
    answers = await hub.call_all(hub.ranks, OutlineModel(path), timeout=hub.settings.form_seconds)
    for rank, answer in answers.items():
        if isinstance(answer, NbdistError):
            raise UsageError(f"{_unchanged(path)}: {answer}")
        if answer is not None:
            found[rank] = answer
    if source not in found:
        hint = QUOTES if "[" in path else ""
        raise UsageError(f"there is no variable `{path}` on rank {source}{hint}")
    return found


def _sharers(outline: Outline, hub: Hub) -> list[int]:
    return sorted(outline.ranks or hub.ranks)


def _unchanged(path: str) -> str:
    return f"`{path}` was not synced, and nothing was changed"


def _difference(path: str, source: int, told: dict[int, dict[str, str]]) -> str:
    """Return how the first part that is not the same on all ranks differs; '' if there is none."""
    names = dict.fromkeys(name for rank in (source, *told) for name in told[rank])
    odd = [name for name in names if len({parts.get(name) for parts in told.values()}) > 1]
    if not odd:
        return ""
    # If the kinds differ, the rest follows.
    name = odd[0]
    here = told[source].get(name, MISSING)
    other = next(now for parts in told.values() if (now := parts.get(name, MISSING)) != here)
    ranks = [rank for rank, parts in told.items() if parts.get(name, MISSING) == other]
    same = [rank for rank, parts in told.items() if parts.get(name, MISSING) == here]
    first = f" (the first of {len(odd)} differences)" if name and odd[1:] else ""
    return (
        f"`{name or path}` is {here} on {name_ranks(same)} and {other} on {name_ranks(ranks)}"
        f"{first}"
    )


async def _group_of(hub: Hub, path: str, members: list[int], lacking: list[int]) -> str:
    """Return the name of the process group of exactly these ranks."""
    answers = await hub.call_all(members, ListGroups())
    named = [
        {group.name for group in groups if sorted(group.ranks) == members}
        for groups in given(answers).values()
    ]
    common = set.intersection(*named) if named else set()
    if not common and lacking and len(members) == 1:
        raise UsageError(
            f"there is no variable `{path}` on {name_ranks(lacking)}: run the cell that defines it "
            "on all ranks first"
        )
    if not common:
        raise UsageError(
            f"`{path}` is shared by {name_ranks(members)} only, which have no process group of "
            f"their own to send it through; `dist.new_group({members})` on all ranks makes one"
        )
    return min(common)
