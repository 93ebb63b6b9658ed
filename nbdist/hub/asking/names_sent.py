"""Sends names to ranks and takes names from them. Hub's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import msgspec

from nbdist.errors import NbdistError, UsageError
from nbdist.rank.values.parcels import map_blocks
from nbdist.wire.messages import Run
from nbdist.wire.parcel_format import Offer, Parcel
from nbdist.wire.rank_calls import (
    UNASKED,
    Ask,
    DropParcel,
    OfferNames,
    ReceiveParcel,
    ReleaseOffer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbdist.hub.hub import Hub
    from nbdist.hub.link.agent_connections import Line

LET_GO_SECONDS = 1.0
LONG_SECONDS = 3600.0
"""Objects without number may be on their way; a rank that dies meanwhile answers by its death."""


class Packed(Protocol):
    """Names of the notebook on their way; see `nbdist.cell.names.packed_names.Bringing`."""

    @property
    def parcel(self) -> Parcel:
        """What ranks receive."""

    def told(self, bound: Mapping[int, list[str]]) -> list[str]:
        """Return what to tell of it, given the names that each rank is to bind."""

    def close(self) -> None:
        """Let go of the memory that holds it."""


async def hand_over(hub: Hub, ranks: Iterable[int], bringing: Packed, run: Run) -> list[str]:
    """Have ranks take in names, all or none; they are bound by `Run.parcel`, or by `BindParcel`.

    Returns
    -------
    list
        What to tell of it.

    Raises
    ------
    UsageError
        If a rank cannot take them in; then nothing is bound on any.
    """
    ranks = list(ranks)
    try:
        answers = await hub.call_all(
            ranks, ReceiveParcel(bringing.parcel, run), timeout=LONG_SECONDS
        )
    except asyncio.CancelledError:
        # Stopped by the user. What ranks have taken in, or still do, they give up again.
        for rank in ranks:
            hub.send(rank, Ask(UNASKED, DropParcel()))
        raise
    finally:
        bringing.close()
    bound: dict[int, list[str]] = {}
    for rank, answer in answers.items():
        if isinstance(answer, NbdistError):
            await hub.call_all(ranks, DropParcel())
            raise UsageError(f"{answer}\nNothing was brought or started.")
        bound[rank] = answer
    return bringing.told(bound)


def no_offer(rank: int, names: Iterable[str], why: str) -> Offer:
    """Return the offer of a rank that can give nothing."""
    nothing = Parcel(id="", names={}, stream=b"", blocks=[])
    return Offer(nothing, dict.fromkeys(names, why), {}, rank)


async def ask_for(line: Line, rank: int, names: list[str], *, copied: bool = False) -> Offer:
    """Have a rank pack names, and map what it holds for us until `ReleaseOffer`.

    The notebook may take its time to unpack it, and the rank's next cell may return others. What
    may come from another host is `copied`.

    Raises
    ------
    NbdistError
        If there is not enough memory.
    """
    offer = await line.call(rank, OfferNames(names), timeout=LONG_SECONDS)
    try:
        buffers = map_blocks(offer.parcel, copied=copied)
    finally:
        # A script's rank ends right then, and its answer may be lost with it.
        await line.call_all([rank], ReleaseOffer(), timeout=LET_GO_SECONDS)
    return msgspec.structs.replace(offer, rank=rank, buffers=buffers)
