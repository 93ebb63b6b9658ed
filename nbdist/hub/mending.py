"""Ranks that are replaced, and what ranks hold made equal. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.hub import comparing, copying, forming
from nbdist.hub.jobs import show_ranks

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub


async def restart(hub: Hub, ranks: list[int], like: int | None) -> dict[int, dict[str, str]]:
    """Put new processes in the place of ranks, with the variables of rank `like` if one is named.

    Other ranks stay as they are; where they hold something else than `like`, `Hub.notes` say so.

    Returns
    -------
    dict
        For each new rank the names it lacks, and why where that is known.
    """
    async with hub.turns.take(range(hub.size), "the restart of ranks"):
        lacking = await forming.replace(hub, ranks)
        why: dict[str, str] = {}
        if like is not None:
            why = await copying.copy_names(hub, like, ranks)
            names = set(await hub.call(like, "names"))
            lacking = {rank: names - set(await hub.call(rank, "names")) for rank in ranks}
        if like is not None or hub.uncompared:
            hub.notes += await comparing.compare(hub, words=comparing.UNLIKE)
    return {
        rank: {name: why.get(name, "") for name in sorted(names)} for rank, names in lacking.items()
    }


async def sync(hub: Hub, name: str, source: int) -> None:
    """Make a model (or an optimizer) equal on all ranks, as it is on `source`."""
    async with hub.turns.take(range(hub.size), "models that are made equal"):
        dead = [rank.rank for rank in hub.ranks.values() if not rank.alive]
        if dead:
            msg = (
                f"rank {show_ranks(dead)} is dead, so that `{name}` cannot be made equal on "
                f"all ranks: `%dist restart {show_ranks(dead)}` replaces it"
            )
            raise UsageError(msg)
        if hub.stale:
            await forming.form(hub)
        await hub.demand(hub.ranks, "sync", name=name, source=source)
