"""The values that a detached job returns, kept on disk until a notebook takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nbdist.machine.operating_system import private
from nbdist.rank.values.parcels import map_blocks
from nbdist.wire import shared_memory
from nbdist.wire.parcel_format import Offer

if TYPE_CHECKING:
    from pathlib import Path

_decode = msgspec.msgpack.Decoder(Offer).decode  # any thread; see `nbdist.rank.script_program`


def write(folder: Path, rank: int, offer: Offer) -> None:
    """Write the values that a rank has packed.

    Raises
    ------
    OSError
        If the disk is full.
    """
    blocks = []
    if offer.buffers:
        blocks = [shared_memory.write_file(folder / f"returned{rank}.data", offer.buffers)]
    parcel = msgspec.structs.replace(offer.parcel, blocks=blocks)
    with open(folder / f"returned{rank}", "wb", opener=private) as file:
        file.write(
            msgspec.msgpack.encode(msgspec.structs.replace(offer, parcel=parcel, buffers=[]))
        )


def read(folder: Path, rank: int) -> Offer:
    """Return a rank's packed values, with large buffers mapped.

    Raises
    ------
    OSError, NbdistError
        If the file is missing or cannot be mapped.
    """
    offer = _decode((folder / f"returned{rank}").read_bytes())
    return msgspec.structs.replace(offer, buffers=map_blocks(offer.parcel))
