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
    from collections.abc import Iterable, Mapping, Sequence

    from nbdist.hub.hub import Hub
    from nbdist.hub.link.agent_connections import Line

LET_GO_SECONDS = 1.0
LONG_SECONDS = 3600.0
"""A very long limit, as there may be many objects; the death of a rank ends the wait, too."""


class Packed(Protocol):
    """Packed names of the notebook; see `nbdist.cell.names.bringing.Bringing`."""

    @property
    def notes(self) -> Sequence[str]:
        """What is to be said of names, also of those that are not sent."""

    @property
    def parcel(self) -> Parcel:
        """The parcel that ranks receive."""

    def told(self, bound: Mapping[int, list[str]]) -> list[str]:
        """Return messages for the user, given the names that each rank will bind."""

    def close(self) -> None:
        """Release the memory of the parcel."""


async def hand_over(hub: Hub, ranks: Iterable[int], bringing: Packed, run: Run) -> list[str]:
    """Send names to ranks, to all or none; `Run.parcel` or `BindParcel` binds them later.

    Returns
    -------
    list
        Messages for the user.

    Raises
    ------
    UsageError
        If a rank cannot receive the names; then no rank binds them.
    """
    ranks = list(ranks)
    try:
        answers = await hub.call_all(
            ranks, ReceiveParcel(bringing.parcel, run), timeout=LONG_SECONDS
        )
    except asyncio.CancelledError:
        # Stopped by the user: the ranks drop what they have received.
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


def not_returned(refused: Mapping[str, str], rank: int) -> str:
    """Say which names a rank cannot return, and why."""
    return "\n".join(
        f"`{name}` cannot be returned from rank {rank}: {why}." for name, why in refused.items()
    )


def no_offer(rank: int, names: Iterable[str], why: str) -> Offer:
    """Return an empty offer for a rank, with the reason."""
    nothing = Parcel(id="", names={}, stream=b"", blocks=[])
    return Offer(nothing, dict.fromkeys(names, why), {}, rank)


async def ask_for(line: Line, rank: int, names: list[str], *, copied: bool = False) -> Offer:
    """Let a rank pack names, and map its memory, which the rank keeps until `ReleaseOffer`.

    Mapped memory stays valid here while the rank's next cell returns other names. Values from
    another host must be `copied`.

    Raises
    ------
    NbdistError
        If there is not enough memory.
    """
    offer = await line.call(rank, OfferNames(names), timeout=LONG_SECONDS)
    try:
        buffers = map_blocks(offer.parcel, copied=copied)
    finally:
        # A script's rank then ends, so its answer may be lost.
        await line.call_all([rank], ReleaseOffer(), timeout=LET_GO_SECONDS)
    return msgspec.structs.replace(offer, rank=rank, buffers=buffers)
