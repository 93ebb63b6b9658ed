"""The form in which names travel between two processes of a host."""

from __future__ import annotations

import msgspec


class Block(msgspec.Struct, frozen=True):
    """Memory (or a file) that the sender keeps until all receivers have mapped it."""

    path: str
    size: int
    spans: list[tuple[int, int]]
    """Offset and length of each buffer in the block."""


class Source(msgspec.Struct, frozen=True):
    """The text of a cell that defines functions."""

    file: str
    """The file name in the functions' code objects."""
    text: str
    number: int
    """The cell's execution count, 0 without one."""


class Parcel(msgspec.Struct, frozen=True):
    """Pickled values, one pickle after another; large data is in `blocks`."""

    id: str
    names: dict[str, str]
    """The notebook's version of each name, '' for names that are the ranks' own from now on."""
    stream: bytes
    """The pickles, empty if they are the first buffer."""
    blocks: list[Block]
    """All buffers, in the order in which they were pickled."""
    classes: int = 0
    """How many classes without a name come before the names."""
    imports: list[str] = []
    """Modules to import first: submodules that are used through their package's name."""
    reloads: dict[str, int] = {}
    """How often the notebook has reloaded modules; those that are imported by others come first."""
    forced: list[str] = []
    """Names to bind even if the rank has a value of its own."""
    sources: list[Source] = []
    """The cells that define the functions."""
    dealing: list[str] = []
    """Names that hold what deals data out to ranks, such as a sampler."""


class Offer(msgspec.Struct, frozen=True):
    """The values that a rank has packed for the notebook; see `Names.offer`."""

    parcel: Parcel
    refused: dict[str, str]
    sizes: dict[str, int]
    rank: int = 0
    buffers: list[memoryview] = []
    """The parcel's large buffers, mapped, so that they stay if the rank ends."""
