"""Names on their way to ranks and back, on the hub's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from nbdist.errors import NbdistError, UsageError
from nbdist.rank.values.parcels import map_blocks
from nbdist.wire import messages
from nbdist.wire.parcel import Offer, Parcel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbdist.hub.hub import Hub
    from nbdist.hub.link.line import Line

LET_GO_SECONDS = 1.0
LONG_SECONDS = 3600.0
"""Objects without number may be on their way; a rank that dies meanwhile answers by its death."""


class Packed(Protocol):
    """Names of the notebook on their way; see `nbdist.cell.names.bringing.Bringing`."""

    @property
    def parcel(self) -> Parcel:
        """What ranks receive."""

    def told(self, answers: dict[int, Any]) -> list[str]:
        """Return what to tell of it, given what each rank has answered."""

    def close(self) -> None:
        """Let go of the memory that holds it."""


async def hand_over(
    hub: Hub, ranks: Iterable[int], bringing: Packed, run: messages.Run
) -> list[str]:
    """Have ranks take in names, all or none; they are bound by `Run.parcel`, or by `bind`.

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
            ranks, "receive", timeout=LONG_SECONDS, parcel=bringing.parcel, run=run
        )
    except asyncio.CancelledError:
        # Stopped by the user. What ranks have taken in, or still do, they give up again.
        for rank in ranks:
            hub.send(rank, messages.Call(messages.UNASKED, "drop"))
        raise
    finally:
        bringing.close()
    for answer in answers.values():
        if isinstance(answer, NbdistError):
            await hub.call_all(ranks, "drop")
            raise UsageError(f"{answer}\nNothing was brought or started.")
    return bringing.told(answers)


def no_offer(rank: int, names: Iterable[str], why: str) -> Offer:
    """Return the offer of a rank that can give nothing."""
    nothing = Parcel(id="", names={}, stream=b"", blocks=[])
    return Offer(nothing, dict.fromkeys(names, why), {}, rank)


async def ask_for(line: Line, rank: int, names: list[str], *, copied: bool = False) -> Offer:
    """Have a rank pack names, and map what it holds for us until `let_go`.

    The notebook may take its time to unpack it, and the rank's next cell may return others. What
    may come from another host is `copied`.

    Raises
    ------
    NbdistError
        If there is not enough memory.
    """
    found: Any = await line.call(rank, "offer", timeout=LONG_SECONDS, names=names)
    offer = msgspec.convert(found | {"rank": rank}, Offer)
    try:
        buffers = map_blocks(offer.parcel, copied=copied)
    finally:
        # A script's rank ends right then, and its answer may be lost with it.
        await line.call_all([rank], "let_go", timeout=LET_GO_SECONDS)
    return msgspec.structs.replace(offer, buffers=buffers)
