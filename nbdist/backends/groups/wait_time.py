"""How long this process's main thread has waited for other ranks, added up as it comes.

In synchronous training all ranks have equal steps: the fast ones wait inside collectives for the
slow one. Only without these waits a step tells whose it is. Who knows of a wait calls `add`; calls
that do nothing but wait are wrapped by `timed`. No torch is needed here.
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
    """What is known so far."""

    seconds: float
    times: int
    """How many waits were told; while it is 0, nobody knows whether there were any."""


_waited = Waited(0.0, 0)
_inside = False
"""Whether the main thread is in a timed call: those within it are part of it."""


def so_far() -> Waited:
    """Return what has been added since the process began. Any thread."""
    return _waited


def add(seconds: float) -> None:
    """Note a wait that is over. Main thread."""
    global _waited  # a process has one main thread
    _waited = Waited(_waited.seconds + seconds, _waited.times + 1)


def timed(call: Callable[Args, Result]) -> Callable[Args, Result]:
    """Return a function that does the same, its time on the main thread noted as a wait."""

    @functools.wraps(call)
    def waiting(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        global _inside  # see there
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
    """Whether a frame is only that of a timed call, and the wait itself the next one's."""
    return frame.f_code.co_filename == __file__
