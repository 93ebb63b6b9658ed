"""Variables copied from rank to rank, and kept DDP models that take new ranks in. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import NbdistError

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub


async def copy_names(hub: Hub, source: int, ranks: list[int]) -> dict[str, str]:
    """Give new ranks the variables of `source`; kept DDP models take the new ranks in.

    Returns
    -------
    dict
        Why a variable could not be copied, by name.
    """
    names = await hub.call(source, "names")
    refused = await _copy(hub, source, ranks, names)
    if "" in refused:
        # Something cannot be rebuilt on the new rank: find out what, copy the rest.
        alone = {name: await _copy(hub, source, ranks, [name]) for name in names}
        refused = {name: why for name, found in alone.items() for why in found.values()}
        await _copy(hub, source, ranks, [name for name in names if name not in refused])
    await adopt_models(hub, ranks, source)
    return refused


async def adopt_models(hub: Hub, ranks: list[int], source: int) -> None:
    """Have kept DDP models take new ranks in, with the parameters of rank `source`."""
    for members, models in (await _shared_models(hub)).items():
        if not set(members).isdisjoint(ranks):
            await hub.demand(members, "adopt", names=sorted(models), source=source)


async def _shared_models(hub: Hub) -> dict[tuple[int, ...], set[str]]:
    """Return the DDP models that all ranks of their group hold, by the ranks of the group."""
    known: dict[int, dict[str, list[int]]] = {
        rank: answer
        for rank, answer in (await hub.call_all(hub.ranks, "shared")).items()
        if isinstance(answer, dict)
    }
    found: dict[tuple[int, ...], set[str]] = {}
    for models in known.values():
        for name, members in models.items():
            if all(known.get(member, {}).get(name) == members for member in members):
                found.setdefault(tuple(members), set()).add(name)
    return found


async def _copy(hub: Hub, source: int, ranks: list[int], names: list[str]) -> dict[str, str]:
    """Copy names; return what was refused and why, under '' what failed on arrival."""
    path = hub.host.folder / f"names-{source}.pickle"
    seconds = hub.settings.form_seconds
    try:
        given = await hub.call(source, "give", timeout=seconds, path=str(path), names=names)
        refused: dict[str, str] = dict(given)
        for answer in (await hub.call_all(ranks, "take", timeout=seconds, path=str(path))).values():
            if isinstance(answer, NbdistError):
                refused[""] = str(answer)
    finally:
        path.unlink(missing_ok=True)
    return refused
