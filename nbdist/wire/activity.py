"""What a busy rank reports: progress of its loops, and its use of the machine."""

from __future__ import annotations

import msgspec


class Bar(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a loop has come."""

    label: str
    done: int
    total: int | None = None
    rate: float | None = None
    """Iterations a second of late; None where that cannot be told yet."""
    samples: float | None = None
    """Samples a second of this rank."""
    waited: float | None = None
    """Which part of its time it has waited for the next item, 0 to 1."""
    own: float | None = None
    """Seconds a step without what it waits for other ranks; None where that cannot be told."""
    over: bool = False
    tqdm: bool = False
    """Whether it is tqdm's and not ours."""
    left: float | None = None
    """Seconds to its end; None where that cannot be told."""
    still: float | None = None
    """Seconds since the end of a step, if that is far longer than one takes."""


class Pace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one place's loops took, together and without the first half of their steps."""

    label: str
    steps: int
    seconds: float
    """In these loops alone, not between them."""
    samples: int = 0
    """0 if unknown."""
    waited: float = 0.0
    """Seconds it has waited for items."""
    others: float | None = None
    """Seconds it has waited for other ranks; None where that cannot be told."""
    inner: bool = True
    """Whether no other loop was within."""
    passes: int = 0
    """How often a loop there has gone through all its items, the first time not counted, unless it
    was the only one."""
    pass_seconds: float = 0.0
    """What each of those took, on the average."""
    uneven: bool = False
    """Whether some passes had far more items than others."""
    place: str = ""
    """Where it stands and is called from, the same on all ranks."""
    outer: str = ""
    """The place of the loop it is within; none if it is empty."""


class Vitals(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank takes of its machine."""

    rss: int
    """Bytes."""
    cpu: float | None = None
    """Percent of one core, over the last half second."""
    gpu: float | None = None
    """Percent of the time its GPU was in use, by any process."""
    gpu_memory: int | None = None
    """Bytes this process has on its GPU."""
