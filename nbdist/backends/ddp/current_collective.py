"""Finds the collective in which the main thread waits, looking from another thread."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from nbdist.backends.groups.same_call import is_new
from nbdist.backends.torch_private import recorder
from nbdist.wire.group_reports import BACKWARD, Waiting

if TYPE_CHECKING:
    from types import FrameType

_COLLECTIVES = "/torch/distributed/distributed_c10d.py"
_AROUND = (
    _COLLECTIVES,
    "/torch/distributed/c10d_logger.py",
    "/nbdist/backends/torch_private/hooks.py",  # gloo groups are created through it
    "/nbdist/backends/groups/wait_time.py",  # waits are measured there
    "/nbdist/backends/ddp/joining.py",  # ranks meet there before NCCL connects them
    "/nbdist/backends/groups/registry.py",
)
_CALLS = ("new_group", "init_process_group")
"""Functions of torch that a user calls and that are wrapped by our modules."""
_PLACES = {
    BACKWARD: "backward",
    "/torch/nn/parallel/distributed.py": "DDP forward",
    "/torch/distributed/_functional_collectives.py": "",
}
"""Functions in which collectives start in C++; the flight recorder shows whether one is running."""


NAMELESS = "a collective that this torch does not name"
END_SECONDS = 0.2
"""A collective that is about to finish gets this long before it is aborted."""
BEFORE_SECONDS = 2.0
"""A collective on a GPU is aborted this long before torch's own time limit."""


@dataclass
class Watch:
    """Looks at the main thread; polled by one other thread.

    Torch's flight recorders know when a collective began. For calls that they do not record
    (``new_group``, a store), the wait is counted from the first look that found the main thread in
    this call.
    """

    main: int = field(default_factory=lambda: threading.main_thread().ident or 0)
    _looked: float = 0.0
    """When the last look was."""
    _inside: bool = False
    """Whether it found the main thread in a call."""
    _first_seen: float = 0.0
    _not_before: float = 0.0
    """When this call was first seen, and the look before that: it has begun between the two."""
    _before: tuple[Waiting | None, float] = None, 0.0
    """What the recorders reported when they were last read, and when; None if the main thread has
    moved since."""

    def look(self) -> Waiting | None:
        """Return the collective that the main thread runs or waits for, or None."""
        try:
            return self._look()
        except Exception:  # another torch has other records: waits stay unknown
            return None

    def in_backward(self) -> bool:
        """Return whether the main thread is in a backward pass. Any thread."""
        frame = sys._current_frames().get(self.main)  # noqa: SLF001  # there is no public one
        while frame is not None and not frame.f_code.co_filename.endswith(BACKWARD):
            frame = frame.f_back
        return frame is not None

    def _look(self) -> Waiting | None:
        now = time.time()
        frame = sys._current_frames().get(self.main)  # noqa: SLF001  # there is no public one
        inside = _collective(frame)
        around, place = (inside, None) if inside else _place(frame)
        self._follow(around, now)
        if recorder.rests():
            return self._as_before(inside, now)
        found = self._read(inside, place, now)
        self._before = found, now
        return found

    def _follow(self, call: FrameType | None, now: float) -> None:
        """Note when the main thread's call has begun, and whether the thread has moved."""
        before, self._looked = self._looked, now
        was_inside, self._inside = self._inside, call is not None
        moved = was_inside if call is None else is_new(call) or not was_inside
        if moved:
            self._before = None, now
            self._first_seen, self._not_before = now, before

    def _as_before(self, inside: FrameType | None, now: float) -> Waiting | None:
        """Return the last finding if the main thread has not moved, without a limit to act on."""
        found, at = self._before
        if found is not None:
            return msgspec.structs.replace(found, since=found.since + now - at, limit=0.0)
        return self._in_call(inside, now) if inside else None

    def _read(self, inside: FrameType | None, place: str | None, now: float) -> Waiting | None:
        on_gpu = _oldest(recorder.on_gpu())
        if inside is None and place is None:
            # Any call that waits for the GPU, such as `.item()`, waits for this collective.
            return None if on_gpu is None else _of_gpu(on_gpu, _named(on_gpu))
        on_cpu = recorder.running_collectives() if _sleeps() else []
        # Those from before this call may be another thread's, or nobody waits for them yet.
        own = [each for each in on_cpu if each["time_created_ns"] / 1e9 >= self._not_before]
        on_cpu = own if own or inside else on_cpu
        record = _oldest([*on_cpu, *([on_gpu] if on_gpu else [])])
        if record is None:
            return self._in_call(inside, now) if inside else None
        op = _named(record)
        if inside is not None:
            op = inside.f_code.co_name
        elif place:
            op = f"{op} in {place}"
        if record is on_gpu:
            return _of_gpu(record, op)
        found = _of(record, op)
        return msgspec.structs.replace(found, since=min(found.since, now - self._not_before))

    def _in_call(self, inside: FrameType, now: float) -> Waiting:
        # Only the frame's locals name the group. Reading the locals of a frame that another thread
        # runs is not safe: CPython 3.11 may copy the frame's closure twice.
        return Waiting(inside.f_code.co_name, "", None, now - self._first_seen)


def _sleeps() -> bool:
    """Return whether the main thread sleeps, as one does that waits for a collective on CPUs.

    Torch reads its list of groups without the lock under which the first collective of a group
    enters the group there (`FlightRecorder::getPgStatusJson`). If it reads while the main thread is
    between two instructions of that, the process dies of a segmentation fault.
    """
    return sys.platform != "linux" or psutil.Process().status() != psutil.STATUS_RUNNING


def _collective(frame: FrameType | None) -> FrameType | None:
    """Return the outermost call of a collective, if the innermost frame belongs to one."""
    found = None
    while frame is not None and frame.f_code.co_filename.endswith(_AROUND):
        code = frame.f_code
        if code.co_filename.endswith(_COLLECTIVES) or code.co_name in _CALLS:
            found = frame
        frame = frame.f_back
    return found


def _place(frame: FrameType | None) -> tuple[FrameType | None, str | None]:
    """Return the innermost place in the stack where collectives start in C++, and its name."""
    while frame is not None:
        for path, name in _PLACES.items():
            if frame.f_code.co_filename.endswith(path):
                return frame, name
        frame = frame.f_back
    return None, None


def unfinished() -> set[str]:
    """Return the names of the collectives that an abort of this rank's GPU will end. Any thread.

    Collectives that are about to finish get a moment to do so.
    """
    if not recorder.knows_gpu():
        return {NAMELESS}
    deadline = time.monotonic() + END_SECONDS
    try:
        while (records := recorder.on_gpu()) and time.monotonic() < deadline:
            time.sleep(END_SECONDS / 20)
        return {f"{_named(record)} #{record['collective_seq_id']}" for record in records}
    except Exception:  # no error may prevent the abort
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
    """Return the wait for a collective on the GPU; only our agent ends it, at the wait's limit."""
    if record["is_p2p"]:  # an aborted batch looks like a hanging one: only report it
        return _of(record, op)
    # At its own limit torch's watchdog, which we do not let abort it, forgets the collective.
    limit = int(record["timeout_ms"]) / 1e3
    sooner = max(limit - BEFORE_SECONDS, limit / 2)
    return msgspec.structs.replace(_of(record, op), limit=sooner)


def _oldest(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(records, key=lambda record: int(record["time_created_ns"]), default=None)
