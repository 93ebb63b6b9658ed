"""Finds the Horovod collective in which the main thread waits, and for how long."""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbdist.backends.groups import wait_time
from nbdist.backends.groups.same_call import is_new
from nbdist.wire.group_reports import Waiting

if TYPE_CHECKING:
    from types import FrameType

_BETWEEN = "torch.autograd.function"
"""Between Horovod's frames: its operations are autograd functions, which torch calls."""
_OPERATIONS = re.compile(r"tensorflow\..*|[0-9a-f]{40}")
"""Modules in which Horovod's TensorFlow calls wait: TensorFlow's, and those it generates for
operations."""
_LIBRARY = "horovod.torch.mpi_lib_v2"
_WAIT = "horovod_torch_wait_and_clear"
"""The function in which all of Horovod's torch calls wait."""


def time_waits() -> None:
    """Have waits for other ranks added up in `wait_time`, if Horovod is imported; repeatable."""
    library = sys.modules.get(_LIBRARY)
    wait = getattr(library, _WAIT, None)
    if wait is not None and not hasattr(wait, "__wrapped__"):
        setattr(library, _WAIT, wait_time.timed(wait))


@dataclass
class Watch:
    """Looks at the main thread; polled by one other thread.

    Horovod does not record when a collective began: the wait is counted from the first look that
    found the main thread in this call.
    """

    main: int = field(default_factory=lambda: threading.main_thread().ident or 0)
    _first_seen: float = 0.0

    def look(self) -> Waiting | None:
        """Return the Horovod call in which the main thread is, or None."""
        frame = sys._current_frames().get(self.main)  # noqa: SLF001  # there is no public one
        called = _called(frame)
        if called is None:
            return None
        now = time.time()
        if is_new(called):
            self._first_seen = now
        return Waiting(called.f_code.co_name, "", None, now - self._first_seen)


def _called(frame: FrameType | None) -> FrameType | None:
    """Return the outermost Horovod call, if the innermost frame belongs to one.

    Calls within a TensorFlow graph, as in Keras' `fit`, cannot be seen.
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
