"""Replaces ranks, with the variables of another rank. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.hub.asking import rank_equality
from nbdist.hub.link import copies, forming

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub


async def restart(hub: Hub, ranks: list[int], like: int | None) -> dict[int, dict[str, str]]:
    """Replace ranks by new processes, with the variables of rank `like` if it is given.

    Dead ranks are replaced, too, as the process group needs all ranks. The other ranks do not
    change; `Hub.notes` says where their variables differ from those of `like`.

    Returns
    -------
    dict
        For each new rank the names it lacks, each with the reason if known.
    """
    async with hub.turns.take(range(hub.size), "the restart of ranks"):
        dead = {rank.rank for rank in hub.ranks.values() if not rank.alive}
        if like in dead:
            raise UsageError(f"rank {like} is dead, so no other rank can copy its variables")
        ranks = sorted({*ranks, *dead})
        lacking = await forming.replace(hub, ranks)
        why: dict[str, str] = {}
        if like is not None:
            why = await copies.copy_names(hub, like, ranks)
            lacking = await copies.lacking(hub, like, ranks)
        if like is not None or hub.uncompared:
            hub.notes += await rank_equality.compare(hub, words=rank_equality.UNLIKE)
        return {
            rank: {name: why.get(name, "") for name in sorted(names)}
            for rank, names in lacking.items()
        }
