"""A rank's answers about its variables, their names and its memory."""

from __future__ import annotations

import msgspec

from nbdist.wire.messages import Pulse


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A variable of one rank; fields that do not apply are empty."""

    name: str
    type: str
    shape: str = ""
    """`(8, 4)`, `12 items`, `1,290 parameters`."""
    value: str = ""
    """The `repr` of numbers, strings and the like."""
    dtype: str = ""
    device: str = ""
    size: int | None = None
    """Bytes of its data."""
    digest: str = ""
    """Equal on two ranks if their values are equal; empty if the values were not read."""
    buffers: str = ""
    """Likewise for a model's buffers, which are no part of `digest`."""


class Look(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank has under a name that the notebook has, too."""

    version: str = ""
    """The notebook's version of the object, '' if a cell here has bound the name."""
    changed: bool = False
    """Whether cells here have bound or changed it since it was brought or returned."""
    likeness: str = ""
    """Equal in the notebook if the value is equal; empty if that was not decided."""
    value: str = ""
    """The `repr` of a short plain value."""
    busy: bool = False
    """Whether the rank was busy, and has compared nothing."""


class Edited(msgspec.Struct, frozen=True):
    """The notebook's new state of an object that it has changed in place."""

    version: str
    likeness: str
    """Equal on a rank if the value is equal; empty if that was not decided."""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a rank could be asked on its main thread."""

    busy: bool = False
    line: int | None = None
    """The line of the cell that is running."""


class Holdings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The variables of a rank that fit some patterns."""

    state: State
    names: list[str] = []
    """The names of all of them, sorted."""
    seen: list[Seen] = []
    """The first of them, described."""
    late: list[str] = []
    """Names whose values were not read because this would have taken too long."""


class Completions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The completions for a position in a cell."""

    state: State
    back: int = 0
    """How many characters before the cursor the completions begin."""
    texts: list[tuple[str, str]] = []
    """Each text with its type, as IPython names it."""


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory of a rank's process, in bytes."""

    rss: int
    unique: int | None = None
    """Memory not shared with other processes, None if the system does not report it."""
    allocated: int | None = None
    """GPU memory of live tensors; None if the rank uses no GPU."""
    reserved: int | None = None
    """GPU memory that torch holds in all."""


class Condition(msgspec.Struct, frozen=True):
    """What a rank is doing, and its memory."""

    doing: Pulse
    """Its pulse; an idle rank's has '' as job."""
    memory: Memory


class Freed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory of a rank before and after it freed memory; None if it was busy."""

    state: State
    before: Memory | None = None
    after: Memory | None = None


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that may be a rank's own."""

    means: str
    """See `nbdist.rank.values.rank_marks.meaning`; or "generator", "seed", "data",
    "value"."""
    value: str
    """The value or a digest."""
    can_be_set: bool = False
    """Whether it is enough to set it for a rank that has got it from another one."""


class Marks(msgspec.Struct, frozen=True):
    """What may be a rank's own, by its path, and the rank's place."""

    rank: int
    local_rank: int
    found: dict[str, Mark]
