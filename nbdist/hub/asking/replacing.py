"""Replaces ranks, and makes their variables equal to another rank's. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.hub.asking import rank_equality
from nbdist.hub.link import copies, forming
from nbdist.hub.link.agent_connections import given
from nbdist.job.named_ranks import name_ranks, show_ranks
from nbdist.job.report import agree
from nbdist.machine.amounts import counted
from nbdist.wire.rank_calls import FindSharers, ListGroups, ListNames, SyncModel

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub

NAMES_SECONDS = 2.0
"""Time limit for a rank to list its names before it is replaced, perhaps because it is stuck."""
QUOTES = " (if a key has quotes, put other quotes around the whole path: \"nets['a']\")"


async def restart(hub: Hub, ranks: list[int], like: int | None) -> dict[int, dict[str, str]]:
    """Replace ranks by new processes, with the variables of rank `like` if it is given.

    Dead ranks are replaced, too, as the process group needs all ranks. The other ranks do not
    change; `Hub.notes` says where their variables differ from those of `like`.

    Returns
    -------
    dict
        For each new rank the names it lacks, each with the reason if known. Empty if no rank stays
        and none could say what it had.
    """
    async with hub.turns.take(range(hub.size), "the restart of ranks"):
        dead = {rank.rank for rank in hub.ranks.values() if not rank.sound}
        if like in dead:
            gone = "cannot use its GPU any more" if hub.ranks[like].alive else "is dead"
            raise UsageError(f"rank {like} {gone}, so no other rank can copy its variables")
        ranks = sorted({*ranks, *dead})
        asked = [rank for rank in ranks if hub.ranks[rank].alive]
        had = given(await hub.call_all(asked, ListNames(), timeout=NAMES_SECONDS))
        lacking = await forming.replace(hub, ranks)
        if not had and len(ranks) == hub.size:
            return {}
        why: dict[str, str] = {}
        if like is not None:
            why = await copies.copy_names(hub, like, ranks)
            lacking = await copies.lacking(hub, like, ranks)
        _add_what_they_had(lacking, had, given(await hub.call_all(ranks, ListNames())))
        if like is not None or hub.uncompared:
            hub.notes += await rank_equality.compare(hub, words=rank_equality.UNLIKE)
        return {
            rank: {name: why.get(name, "") for name in sorted(names)}
            for rank, names in lacking.items()
        }


def _add_what_they_had(
    lacking: dict[int, set[str]], had: dict[int, list[str]], has: dict[int, list[str]]
) -> None:
    """Add what only the replaced ranks had. What a dead one had is what the others had."""
    known = {name for names in had.values() for name in names}
    for rank, names in has.items():
        lacking[rank] |= {*had.get(rank, known)} - {*names}


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
        # Under the same name, another rank may have the model of another group.
        sharers = await hub.call_all(hub.ranks, FindSharers(path))
        if source not in sharers:
            raise UsageError(
                f"there is no rank {source}; this cluster has {counted(hub.size, 'rank')}"
            )
        if not isinstance(sharers[source], list):
            hint = QUOTES if "[" in path else ""
            raise UsageError(f"there is no variable `{path}` on rank {source}{hint}")
        members = [rank for rank, told in sharers.items() if told == sharers[source]]
        lacking = [rank for rank, told in sharers.items() if told is None]
        group = "" if len(members) == hub.size else await _group_of(hub, path, members, lacking)
        await hub.demand(members, SyncModel(path, source, group))
        return members


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
