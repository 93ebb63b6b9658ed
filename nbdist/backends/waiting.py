"""Which collective the main thread is inside, told from another thread."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.backends.torch_private import recorder
from nbdist.wire.groups import Waiting

if TYPE_CHECKING:
    from types import FrameType

_COLLECTIVES = "/torch/distributed/distributed_c10d.py"
_AROUND = (
    _COLLECTIVES,
    "/torch/distributed/c10d_logger.py",
    "/nbdist/backends/torch_private/hooks.py",  # gloo groups are made through it
    "/nbdist/backends/waits.py",  # waits are timed there
)
_PLACES = {
    "/torch/autograd/graph.py": "backward",
    "/torch/nn/parallel/distributed.py": "DDP forward",
    "/torch/distributed/_functional_collectives.py": "",
}
"""Where collectives start in C++: one runs there if the flight recorder says so."""


@dataclass
class Watch:
    """Looks at the main thread; asked by one other thread, again and again.

    Torch's flight recorder knows when a collective began. Where it knows nothing (``new_group``,
    a store), the wait is counted from the first look that found the main thread in the same call.
    """

    main: int = field(default_factory=lambda: threading.main_thread().ident or 0)
    _call: tuple[int, str] | None = None
    _first_seen: float = 0.0

    def look(self) -> Waiting | None:
        """Return the collective that the main thread is inside, or None."""
        frame = sys._current_frames().get(self.main)  # noqa: SLF001  # there is no public one
        inside = _collective(frame)
        place = None if inside else _place(frame)
        if inside is None and place is None:
            self._call = None
            return None
        record = _oldest(recorder.running_collectives())
        if record is None:
            return self._in_call(inside) if inside else None
        op = str(record["profiling_name"]).partition(":")[2]
        if inside is not None:
            op = inside.f_code.co_name
        elif place:
            op = f"{op} in {place}"
        return Waiting(
            op,
            str(record["process_group"][0]),
            int(record["collective_seq_id"]),
            time.time() - record["time_created_ns"] / 1e9,
        )

    def _in_call(self, inside: FrameType) -> Waiting:
        op, now = inside.f_code.co_name, time.time()
        call = (id(inside), op)
        if call != self._call:
            self._call, self._first_seen = call, now
        # Which group it is stands in the frame's locals only, and to read those of a frame that
        # another thread is running is not safe (CPython 3.11 may copy its closure twice).
        return Waiting(op, "", None, now - self._first_seen)


def _collective(frame: FrameType | None) -> FrameType | None:
    """Return the outermost of the calls into torch's collectives, if the inner end is there."""
    found = None
    while frame is not None and frame.f_code.co_filename.endswith(_AROUND):
        if frame.f_code.co_filename.endswith(_COLLECTIVES):
            found = frame
        frame = frame.f_back
    return found


def _place(frame: FrameType | None) -> str | None:
    """Return the innermost place in the stack from where collectives start in C++."""
    while frame is not None:
        for path, name in _PLACES.items():
            if frame.f_code.co_filename.endswith(path):
                return name
        frame = frame.f_back
    return None


def _oldest(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(records, key=lambda record: int(record["time_created_ns"]), default=None)
