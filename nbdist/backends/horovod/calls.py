"""Which of Horovod's collectives the main thread is inside, and how long it waits in them."""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbdist.backends.groups import wait_time
from nbdist.wire.group_reports import Waiting

if TYPE_CHECKING:
    from types import FrameType

_BETWEEN = "torch.autograd.function"
"""Horovod's operations are functions of autograd, called back by torch."""
_OPERATIONS = re.compile(r"tensorflow\..*|[0-9a-f]{40}")
"""What Horovod's calls for TensorFlow wait in: TensorFlow, by modules it makes of operations."""
_LIBRARY = "horovod.torch.mpi_lib_v2"
_WAIT = "horovod_torch_wait_and_clear"
"""What all of Horovod's calls for torch wait in."""


def time_waits() -> None:
    """Have waits for other ranks added up in `waits`, if Horovod is there; may be called again."""
    library = sys.modules.get(_LIBRARY)
    wait = getattr(library, _WAIT, None)
    if wait is not None and not hasattr(wait, "__wrapped__"):
        setattr(library, _WAIT, wait_time.timed(wait))


@dataclass
class Watch:
    """Looks at the main thread; asked by one other thread, again and again.

    Horovod keeps no record of when a collective began: the wait is counted from the first look
    that found the main thread in the same call.
    """

    main: int = field(default_factory=lambda: threading.main_thread().ident or 0)
    _call: tuple[int, str] | None = None
    _first_seen: float = 0.0

    def look(self) -> Waiting | None:
        """Return the call into Horovod that the main thread is inside, or None."""
        frame = sys._current_frames().get(self.main)  # noqa: SLF001  # there is no public one
        called = _called(frame)
        if called is None:
            self._call = None
            return None
        op, now = called.f_code.co_name, time.time()
        call = (id(called), op)
        if call != self._call:
            self._call, self._first_seen = call, now
        return Waiting(op, "", None, now - self._first_seen)


def _called(frame: FrameType | None) -> FrameType | None:
    """Return the outermost of the calls into Horovod, if the inner end is there.

    Those within a graph of TensorFlow's cannot be seen, as in Keras' `fit`.
    """
    found = None
    if frame is not None and wait_time.is_ours(frame):
        frame = frame.f_back
    while frame is not None and _OPERATIONS.fullmatch(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("horovod."):
            found = frame
        elif found is None or module != _BETWEEN:
            break
        frame = frame.f_back
    return found
