"""Replaces ranks, with the variables of another rank. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.hub.asking import rank_equality
from nbdist.hub.link import copies, forming
from nbdist.hub.link.agent_connections import given
from nbdist.wire.rank_calls import ListNames, TellMarks

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub

NAMES_SECONDS = 2.0
"""Time limit for a rank to list its names before it is replaced, perhaps because it is stuck."""


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
        marked = [] if like is None else asked
        before = given(await hub.call_all(marked, TellMarks(), timeout=NAMES_SECONDS))
        lacking = await forming.replace(hub, ranks)
        if not had and len(ranks) == hub.size:
            return {}
        why: dict[str, str] = {}
        if like is not None:
            why = await copies.copy_names(hub, like, ranks, before.values())
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
