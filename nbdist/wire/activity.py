"""What a busy rank reports: progress of its loops, and its use of the machine."""

from __future__ import annotations

import msgspec


class Bar(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a loop."""

    label: str
    done: int
    total: int | None = None
    rate: float | None = None
    """Recent iterations a second; None if not known yet."""
    samples: float | None = None
    """Samples a second of this rank."""
    waited: float | None = None
    """The part of the loop's time, 0 to 1, in which it has waited for the next item."""
    own: float | None = None
    """Seconds a step without waits for other ranks; None if unknown."""
    over: bool = False
    tqdm: bool = False
    """Whether tqdm reports the loop, not nbdist."""
    left: float | None = None
    """Seconds to the loop's end; None if unknown."""
    still: float | None = None
    """Seconds since the last step ended, if that is far longer than a step takes."""


class Pace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of all loops of one place in the code, without the first half of their steps."""

    label: str
    steps: int
    seconds: float
    """Seconds within these loops, not between them."""
    samples: int | None = None
    """None if unknown."""
    waited: float = 0.0
    """Seconds in which the loops have waited for items."""
    others: float | None = None
    """Seconds in which the loops have waited for other ranks; None if unknown."""
    inner: bool = True
    """Whether they contain no other loop."""
    passes: int = 0
    """How many passes through all items there were, without the first pass unless it was the only
    one."""
    pass_seconds: float = 0.0
    """The average time of these passes, in seconds."""
    uneven: bool = False
    """Whether some passes had far more items than others."""
    place: str = ""
    """The loop's line and its caller's line; equal on all ranks."""
    outer: str = ""
    """The place of the surrounding loop, '' if there is none."""


class Vitals(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rank's use of its machine."""

    rss: int
    """Bytes."""
    cpu: float | None = None
    """Percent of one core, over the last half second."""
    gpu: float | None = None
    """Percent of the time its GPU was in use, by any process."""
    gpu_memory: int | None = None
    """Bytes of this process on its GPU."""
