"""A rank's answers about its variables, their names and its memory."""

from __future__ import annotations

import msgspec

from nbdist.wire.messages import Pulse


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A variable as one rank has it; what does not apply is empty."""

    name: str
    type: str
    shape: str = ""
    """`(8, 4)`, `12 items`, `1,290 parameters`."""
    value: str = ""
    """Of numbers, words and the like, as `repr` writes them."""
    dtype: str = ""
    device: str = ""
    size: int | None = None
    """Bytes of its data."""
    digest: str = ""
    """The same on two ranks if their values are, empty if the values were not looked at."""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a rank could be asked on its main thread."""

    busy: bool = False
    line: int | None = None
    """The cell's line that is being run."""


class Holdings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The variables of a rank that fit some patterns."""

    state: State
    names: list[str] = []
    """All of them, sorted."""
    seen: list[Seen] = []
    """The first ones of them."""
    late: list[str] = []
    """Names whose values were not looked at because that would have taken too long."""


class Completions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may stand at a place of a cell."""

    state: State
    back: int = 0
    """How many characters before the cursor the texts begin."""
    texts: list[tuple[str, str]] = []
    """Each with its kind, in IPython's words."""


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes that a rank's process has."""

    rss: int
    unique: int | None = None
    """What it shares with no other process, where the system tells."""
    allocated: int | None = None
    """Of its GPU, by live tensors; None where it uses none."""
    reserved: int | None = None
    """Of its GPU, by torch in all."""


class Condition(msgspec.Struct, frozen=True):
    """What a rank is doing, and what it takes of its machine."""

    doing: Pulse
    """Also of an idle rank, whose job is ''."""
    memory: Memory


class Freed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What freeing memory did on a rank; nothing if it was busy."""

    state: State
    before: Memory | None = None
    after: Memory | None = None
