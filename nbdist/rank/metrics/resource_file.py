"""Records a rank's use of CPU, memory, GPU and network during a job, in a file per rank.

The thread that sends the rank's pulses measures and writes; the user's thread only creates and ends
a `Resources`. All ranks record at the same whole seconds of the job, so that a mean over ranks is a
mean at the same time.
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

from nbdist.metrics.points_file import Column, Frame, append, open_to_append, resources_file
from nbdist.metrics.resource_names import CPU, GPU, GPU_MEMORY, MEMORY, RECEIVED, SENT, interval

if TYPE_CHECKING:
    from nbdist.wire.activity import Vitals

INTERFACES = Path("/sys/class/net")
LOOPBACK = re.compile(r"lo\d*")


class Traffic(NamedTuple):
    """Bytes received and sent since the network interfaces are up."""

    received: int
    sent: int


class Resources:
    """Records this process's use of resources in one job.

    Parameters
    ----------
    folder, job, rank
        They name the file; nothing is written in a job's first second.
    began
        When the job began, `time.time()` of the hub.
    start
        How often the job has been restarted.
    """

    def __init__(self, folder: str, job: str, rank: int, began: float, start: int = 0) -> None:
        self.job, self._start = job, start
        self._where = folder, job, rank
        self._pid = os.getpid()
        self._at, self._spent = time.monotonic(), time.process_time()
        """When the last values were recorded, and this process's CPU time until then."""
        self._zero = self._at - max(0.0, time.time() - began)
        """The job's beginning on the monotonic clock, which cannot be changed."""
        self._last = self._second()
        self._most: dict[str, float] = {}
        """For each name, the largest number of bytes since then."""
        self._uses: list[float] = []
        """Readings of the GPU's utilization since then."""
        self._traffic: tuple[float, Traffic] | None = None
        """The interfaces' counters, and when they were read."""
        self._file = -1
        self._over = False
        self._lock = threading.Lock()

    def look(self, taken: Vitals) -> None:
        """Add a reading, and write values when they are due. The thread that sends pulses."""
        with self._lock:
            if self._over:
                return
            self._note(taken)
            second = self._second()
            if second > self._last:
                self._keep(second)

    def end(self) -> None:
        """Write the rest, if it is a second or more. The thread that ends the job."""
        if os.getpid() != self._pid:  # a fork lacks the thread that may hold the lock
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
            append(self._file, Frame(self._start, columns))
        except OSError as err:  # an error here must not end the training
            self._close()
            print(f"nbdist: resources of this rank are no longer recorded: {err}", file=sys.stderr)

    def _rates(self) -> dict[str, float]:
        now, counted = time.monotonic(), traffic()
        before, self._traffic = self._traffic, (now, counted)
        if before is None:
            return {}
        seconds, then = now - before[0], before[1]
        # The counters can decrease when an interface is removed.
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
    """Return the bytes received and sent by this process's host or container.

    Loopback is left out. If there are hardware interfaces, bridges, tunnels and bonds are left out,
    too, because they carry the same bytes.
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
    """Whether an interface is hardware, and not the slave of another device (as on Azure)."""
    place = INTERFACES / name
    return (place / "device").exists() and not (place / "master" / "device").exists()
