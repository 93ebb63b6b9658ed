"""The form in which names travel between two processes of a host."""

from __future__ import annotations

import msgspec


class Block(msgspec.Struct, frozen=True):
    """Memory (or a file) that the sender holds until everybody has mapped it."""

    path: str
    size: int
    spans: list[tuple[int, int]]
    """Offset and length of each buffer in it."""


class Source(msgspec.Struct, frozen=True):
    """The text of a cell that functions come from."""

    file: str
    """What their code says it is."""
    text: str
    number: int
    """The cell's execution count, 0 where it has none."""


class Parcel(msgspec.Struct, frozen=True):
    """Pickled values, each name's after the other's; what is large lies in `blocks`."""

    id: str
    names: dict[str, str]
    """By name the version the notebook gave it, '' for what is the ranks' own from now on."""
    stream: bytes
    """The pickles, empty where they are the first buffer."""
    blocks: list[Block]
    """All buffers, in the order they were pickled."""
    imports: list[str] = []
    """Modules to import first: submodules that are used through their package's name."""
    forced: list[str] = []
    """Names to bind whatever the rank has under them."""
    sources: list[Source] = []
    """Cells that the functions come from."""


class Offer(msgspec.Struct, frozen=True):
    """What a rank has packed for the notebook; see `Names.offer`."""

    parcel: Parcel
    refused: dict[str, str]
    sizes: dict[str, int]
    rank: int = 0
    buffers: list[memoryview] = []
    """Its large buffers, mapped: they stay whatever becomes of the rank."""
