"""What a rank takes of its machine, from its job's beginning to the end, in a file of its own.

The thread that makes the pulses measures and writes; the user's thread only makes a `Resources` and
ends it. All ranks keep the same whole seconds of the job, so that a mean over ranks is one over the
same instants.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from array import array
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from nbdist.wire.logged_points import Column, Frame, append, open_to_append, resources_file
from nbdist.wire.resource_names import CPU, GPU, GPU_MEMORY, MEMORY, RECEIVED, SENT, interval

if TYPE_CHECKING:
    from nbdist.wire.activity import Vitals

INTERFACES = Path("/sys/class/net")
LOOPBACK = re.compile(r"lo\d*")


class Traffic(NamedTuple):
    """Bytes that have come in and gone out, since the interfaces are up."""

    received: int
    sent: int


class Resources:
    """Keeps what this process takes in one job.

    Parameters
    ----------
    folder, job, rank
        Whose file it is; nothing is written in a job's first second.
    began
        When the job began, `time.time()` of the hub.
    """

    def __init__(self, folder: str, job: str, rank: int, began: float) -> None:
        self.job = job
        self._where = folder, job, rank
        self._pid = os.getpid()
        self._at, self._spent = time.monotonic(), time.process_time()
        """When the last values were kept, and the CPU time that this process had taken by then."""
        self._zero = self._at - max(0.0, time.time() - began)
        """The job's beginning on our own clock, which nobody sets."""
        self._last = self._second()
        self._most: dict[str, float] = {}
        """By name, the most bytes that were seen since then."""
        self._uses: list[float] = []
        """The GPU's use, as it was seen since then."""
        self._traffic: tuple[float, Traffic] | None = None
        """The interfaces' counters, and when they were read."""
        self._file = -1
        self._over = False
        self._lock = threading.Lock()

    def look(self, taken: Vitals) -> None:
        """Take note of a pulse, and write what is due. The thread that makes the pulses."""
        with self._lock:
            if self._over:
                return
            self._note(taken)
            second = self._second()
            if second > self._last:
                self._keep(second)

    def end(self) -> None:
        """Write the rest, if that is a second or more. Whoever ends the job."""
        if os.getpid() != self._pid:  # a fork that has come here lacks the thread with the lock
            return
        with self._lock:
            second = int(time.monotonic() - self._zero)
            if not self._over and self._most and second > self._last:
                self._keep(second)
            self._close()

    def _second(self) -> int:
        second = int(time.monotonic() - self._zero)
        return second - second % interval(second)

    def _note(self, taken: Vitals) -> None:
        for name, size in ((MEMORY, taken.rss), (GPU_MEMORY, taken.gpu_memory)):
            if size is not None:
                self._most[name] = max(size, self._most.get(name, 0.0))
        if taken.gpu is not None:
            self._uses.append(taken.gpu)
        if self._traffic is None:
            self._traffic = time.monotonic(), traffic()

    def _keep(self, second: int) -> None:
        now, spent = time.monotonic(), time.process_time()
        values = {CPU: 100 * (spent - self._spent) / (now - self._at), **self._most}
        if self._uses:
            values[GPU] = sum(self._uses) / len(self._uses)
        values |= self._rates()
        self._at, self._spent, self._last = now, spent, second
        self._most, self._uses = {}, []
        steps, times = array("q", [second]).tobytes(), array("d", [time.time()]).tobytes()
        columns = [
            Column(name, steps, times, array("d", [value]).tobytes())
            for name, value in values.items()
        ]
        try:
            if self._file < 0:
                self._file = open_to_append(resources_file(*self._where))
            append(self._file, Frame(0, columns))  # the seconds of a job never begin anew
        except OSError as err:  # the training is worth more
            self._close()
            print(f"nbdist: resources of this rank are no longer recorded: {err}", file=sys.stderr)

    def _rates(self) -> dict[str, float]:
        now, counted = time.monotonic(), traffic()
        before, self._traffic = self._traffic, (now, counted)
        if before is None:
            return {}
        seconds, then = now - before[0], before[1]
        # An interface that has gone takes its count with it.
        if seconds <= 0 or counted.received < then.received or counted.sent < then.sent:
            return {}
        return {
            RECEIVED: (counted.received - then.received) / seconds,
            SENT: (counted.sent - then.sent) / seconds,
        }

    def _close(self) -> None:
        self._over = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def traffic() -> Traffic:
    """Return what this process's host has received and sent, or its container's own network.

    What stays on the host (loopback) is left out. So are bridges, tunnels and bonds where there are
    interfaces of hardware, which carry the same bytes.
    """
    counters = psutil.net_io_counters(pernic=True, nowrap=False) or {}
    found = [name for name in counters if not LOOPBACK.fullmatch(name)]
    chosen = [name for name in found if _is_hardware(name)] or found
    return Traffic(
        sum(counters[name].bytes_recv for name in chosen),
        sum(counters[name].bytes_sent for name in chosen),
    )


@lru_cache(maxsize=1024)
def _is_hardware(name: str) -> bool:
    """Whether an interface is a device's, and not one half of another device's (as on Azure)."""
    place = INTERFACES / name
    return (place / "device").exists() and not (place / "master" / "device").exists()
