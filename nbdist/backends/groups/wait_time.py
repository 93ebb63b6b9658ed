"""Adds up how long the main thread of this process has waited for other ranks.

In synchronous training all ranks have equally long steps: the fast ranks wait inside collectives
for the slow rank. Only the time of a step without these waits shows which rank is slow. Code that
measures a wait calls `add`; functions that only wait are wrapped by `timed`. This module does not
need torch.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

Args = ParamSpec("Args")
Result = TypeVar("Result")


class Waited(NamedTuple):
    """The waits measured so far."""

    seconds: float
    times: int
    """How many waits were added; 0 means that the waits are unknown."""


_waited = Waited(0.0, 0)
_inside = False
"""Whether the main thread is in a timed call; timed calls within it are not counted again."""


def so_far() -> Waited:
    """Return the sum since the process began. Any thread."""
    return _waited


def add(seconds: float) -> None:
    """Add a wait that has ended. Main thread."""
    global _waited  # a process has one main thread
    _waited = Waited(_waited.seconds + seconds, _waited.times + 1)


def timed(call: Callable[Args, Result]) -> Callable[Args, Result]:
    """Wrap a function, so that its time on the main thread is added as a wait."""

    @functools.wraps(call)
    def waiting(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        global _inside  # a process has one main thread
        if _inside or threading.get_ident() != threading.main_thread().ident:
            return call(*args, **kwargs)
        began, _inside = time.perf_counter(), True
        try:
            return call(*args, **kwargs)
        finally:
            _inside = False
            add(time.perf_counter() - began)

    return waiting


def is_ours(frame: FrameType) -> bool:
    """Whether a frame is that of `timed`'s wrapper, not of the wait itself."""
    return frame.f_code.co_filename == __file__
