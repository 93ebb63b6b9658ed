"""Copies variables from one rank to another. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.hub.link import own_marks
from nbdist.wire.rank_calls import GiveNames, ListNames, TakeNames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbdist.hub.hub import Hub
    from nbdist.wire.inspection import Marks


async def lacking(hub: Hub, like: int, ranks: Iterable[int]) -> dict[int, set[str]]:
    """Return, for each of these ranks, the names that rank `like` has and this rank lacks."""
    names = await hub.call(like, ListNames())
    theirs = {rank: await hub.call(rank, ListNames()) for rank in ranks}
    return {rank: {*names} - {*own} for rank, own in theirs.items()}


async def copy_names(
    hub: Hub, source: int, ranks: list[int], before: Iterable[Marks] = ()
) -> dict[str, str]:
    """Copy the variables of `source` to new ranks, after the group was formed with them.

    DDP models get new reducers on these ranks, as on the others, so that all train on together.
    What said that a rank is `source` says which rank it is, or `Hub.notes` names it; `before` is
    what those have told that these ranks were before.

    Returns
    -------
    dict
        For each variable that could not be copied, the reason.
    """
    names = await hub.call(source, ListNames())
    refused = await _copy(hub, source, ranks, names)
    if "" in refused:
        # A variable cannot be rebuilt on the new rank: find which one, and copy the rest.
        alone = {name: await _copy(hub, source, ranks, [name]) for name in names}
        refused = {name: why for name, found in alone.items() for why in found.values()}
        await _copy(hub, source, ranks, [name for name in names if name not in refused])
    hub.notes += await own_marks.put_right(hub, source, ranks, before)
    return refused


async def _copy(hub: Hub, source: int, ranks: list[int], names: list[str]) -> dict[str, str]:
    """Copy names; return the refused ones with reasons, and under '' an error at the receiver."""
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
