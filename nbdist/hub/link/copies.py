"""Copies variables from one rank to another. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.wire.rank_calls import GiveNames, ListNames, TakeNames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbdist.hub.hub import Hub


async def lacking(hub: Hub, like: int, ranks: Iterable[int]) -> dict[int, set[str]]:
    """Return for each of these ranks the names that rank `like` has and it has not."""
    names = await hub.call(like, ListNames())
    theirs = {rank: await hub.call(rank, ListNames()) for rank in ranks}
    return {rank: {*names} - {*own} for rank, own in theirs.items()}


async def copy_names(hub: Hub, source: int, ranks: list[int]) -> dict[str, str]:
    """Give new ranks the variables of `source`, after the group was formed with them.

    DDP models arrive with reducers as new as those of the others, so all train on together.

    Returns
    -------
    dict
        Why a variable could not be copied, by name.
    """
    names = await hub.call(source, ListNames())
    refused = await _copy(hub, source, ranks, names)
    if "" in refused:
        # Something cannot be rebuilt on the new rank: find out what, copy the rest.
        alone = {name: await _copy(hub, source, ranks, [name]) for name in names}
        refused = {name: why for name, found in alone.items() for why in found.values()}
        await _copy(hub, source, ranks, [name for name in names if name not in refused])
    return refused


async def _copy(hub: Hub, source: int, ranks: list[int], names: list[str]) -> dict[str, str]:
    """Copy names; return what was refused and why, under '' what failed on arrival."""
    path = hub.host.folder / f"names-{source}.pickle"
    seconds = hub.settings.form_seconds
    try:
        refused = await hub.call(source, GiveNames(str(path), names), timeout=seconds)
        answers = await hub.call_all(ranks, TakeNames(str(path)), timeout=seconds)
        for answer in answers.values():
            if isinstance(answer, NbdistError):
                refused[""] = str(answer)
    finally:
        path.unlink(missing_ok=True)
    return refused
