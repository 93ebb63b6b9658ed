"""Which collective the main thread is inside, told from another thread."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.backends.torch_private import recorder
from nbdist.wire.group_reports import Waiting

if TYPE_CHECKING:
    from types import FrameType

_COLLECTIVES = "/torch/distributed/distributed_c10d.py"
_AROUND = (
    _COLLECTIVES,
    "/torch/distributed/c10d_logger.py",
    "/nbdist/backends/torch_private/hooks.py",  # gloo groups are made through it
    "/nbdist/backends/groups/wait_time.py",  # waits are timed there
    "/nbdist/backends/ddp/joining.py",  # ranks meet there before NCCL connects them
    "/nbdist/backends/groups/registry.py",
)
_CALLS = ("new_group", "init_process_group")
"""What a user calls, where it is ours."""
_PLACES = {
    "/torch/autograd/graph.py": "backward",
    "/torch/nn/parallel/distributed.py": "DDP forward",
    "/torch/distributed/_functional_collectives.py": "",
}
"""Where collectives start in C++: one runs there if the flight recorder says so."""


Place = tuple["int | None", "str | None"]
"""A call into torch's collectives, or a place from where they start in C++."""
NAMELESS = "a collective that this torch does not name"
END_SECONDS = 0.2
"""What is only not over yet gets this long before it is aborted."""
BEFORE_SECONDS = 2.0
"""A collective on a GPU is given up so long before torch would."""


@dataclass
class Watch:
    """Looks at the main thread; asked by one other thread, again and again.

    Torch's flight recorders know when a collective began. Where they know nothing (``new_group``,
    a store), the wait is counted from the first look that found the main thread in the same call.
    """

    main: int = field(default_factory=lambda: threading.main_thread().ident or 0)
    _call: tuple[int, str] | None = None
    _first_seen: float = 0.0
    _before: tuple[Place, Waiting | None, float] = (None, None), None, 0.0
    """Where the main thread was when the recorders were read last, what they told, and when."""

    def look(self) -> Waiting | None:
        """Return the collective that the main thread is inside, or waits for, or None."""
        try:
            return self._look()
        except Exception:  # a torch that records otherwise: waits are unknown
            return None

    def _look(self) -> Waiting | None:
        frame = sys._current_frames().get(self.main)  # noqa: SLF001  # there is no public one
        inside = _collective(frame)
        place = None if inside else _place(frame)
        if inside is None:
            self._call = None
        where = inside and id(inside), place
        if recorder.rests():
            return self._as_before(where, inside)
        found = self._read(inside, place)
        self._before = where, found, time.time()
        return found

    def _as_before(self, where: Place, inside: FrameType | None) -> Waiting | None:
        """Return what was found last, if the main thread has not moved; it is told, and no more."""
        then, found, at = self._before
        if found is not None and then == where:
            since = found.since + time.time() - at
            return msgspec.structs.replace(found, since=since, limit=0.0)
        return self._in_call(inside) if inside else None

    def _read(self, inside: FrameType | None, place: str | None) -> Waiting | None:
        on_gpu = _oldest(recorder.on_gpu())
        if inside is None and place is None:
            # Whatever waits for the GPU waits for this, be it a `.item()`.
            return None if on_gpu is None else _of_gpu(on_gpu, _named(on_gpu))
        record = _oldest([*recorder.running_collectives(), *([on_gpu] if on_gpu else [])])
        if record is None:
            return self._in_call(inside) if inside else None
        op = _named(record)
        if inside is not None:
            op = inside.f_code.co_name
        elif place:
            op = f"{op} in {place}"
        return _of_gpu(record, op) if record is on_gpu else _of(record, op)

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
        code = frame.f_code
        if code.co_filename.endswith(_COLLECTIVES) or code.co_name in _CALLS:
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


def unfinished() -> set[str]:
    """Return the collectives that this rank's GPU is about to be freed from, in words. Any thread.

    Those that only have not ended yet get a moment.
    """
    if not recorder.knows_gpu():
        return {NAMELESS}
    deadline = time.monotonic() + END_SECONDS
    try:
        while (records := recorder.on_gpu()) and time.monotonic() < deadline:
            time.sleep(END_SECONDS / 20)
        return {f"{_named(record)} #{record['collective_seq_id']}" for record in records}
    except Exception:  # whatever it is, it must not be in the way of the abort
        return {NAMELESS}


def _named(record: dict[str, Any]) -> str:
    return str(record["profiling_name"]).partition(":")[2]


def _of(record: dict[str, Any], op: str) -> Waiting:
    return Waiting(
        op,
        str(record["process_group"][0]),
        int(record["collective_seq_id"]),
        time.time() - record["time_created_ns"] / 1e9,
    )


def _of_gpu(record: dict[str, Any], op: str) -> Waiting:
    """Return a wait that nobody but us will end."""
    if record["is_p2p"]:  # a batch that was broken off looks like one that hangs: it is told only
        return _of(record, op)
    # Torch's watchdog, which is not to end it, takes it out of the books when its time is up.
    limit = int(record["timeout_ms"]) / 1e3
    sooner = max(limit - BEFORE_SECONDS, limit / 2)
    return msgspec.structs.replace(_of(record, op), limit=sooner)


def _oldest(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(records, key=lambda record: int(record["time_created_ns"]), default=None)
