"""Whether a process is alive, on this host or on another host that shares a folder.

A pid is valid on one host until it reboots, and within one namespace of pids: each container has
its own. There, pid and start time identify a process. Any other process can be watched only
through a file that it touches every few seconds.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
from pathlib import Path

import msgspec
import psutil

BEAT_SECONDS = 5.0
"""How often a process touches the files that show that it is alive."""
SILENT_SECONDS = 60.0
"""A process that cannot be seen from here counts as ended after so long without a touch."""
FORGOTTEN_SECONDS = 7 * 86400.0
"""After so long its files may be removed, too: a suspended host may come back within days."""
SAME_SECONDS = 0.005
"""Half of the unit in which the system counts start times."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place in which a pid means one process; values that the system does not have are ''."""

    host: str = ""
    machine: str = ""
    """The machine's id; machines that were copied from one image may share it."""
    boot: str = ""
    """The id of this boot of the machine; no two are equal."""
    pids: str = ""
    """The namespace of pids."""

    @property
    def name(self) -> str:
        """The name that no other place has; '' if unknown."""
        if sys.platform != "linux":
            return self.host
        return f"{self.boot} {self.pids}" if self.boot and self.pids else ""

    @property
    def seen_from_here(self) -> bool:
        """Whether pids of that place can be looked up in this process."""
        return bool(self.name) and self.name == here().name

    @property
    def before_this_boot(self) -> bool:
        """Whether it is this machine before its last reboot, judged by the names."""
        ours = here()
        same = bool(self.machine) and (self.host, self.machine) == (ours.host, ours.machine)
        return same and bool(self.boot and ours.boot) and self.boot != ours.boot

    @property
    def in_words(self) -> str:
        """A description of the place, seen from here."""
        if self.boot and self.boot == here().boot and self.pids != here().pids:
            return f"in another container of this machine ({self.host})"
        if self.host == here().host:
            return f"on another machine or in another container with the same name {self.host}"
        return f"on {self.host or 'an unknown host'}"


@functools.cache
def here() -> Place:
    """Return the place of this process."""
    return Place(
        socket.gethostname(),
        _read("/etc/machine-id"),
        _read("/proc/sys/kernel/random/boot_id"),
        _namespace(),
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _namespace() -> str:
    """Return the name of our namespace of pids, '' if /proc shows another namespace."""
    try:
        ours = str(Path("/proc/self").readlink()) == str(os.getpid())
        return str(Path("/proc/self/ns/pid").readlink()) if ours else ""
    except OSError:
        return ""


def lives(
    pid: int, created: float, place: Place, touched: Path, patience: float = SILENT_SECONDS
) -> bool:
    """Whether a process is alive, as far as this can be known here.

    Parameters
    ----------
    pid, created
        Its pid and start time, see `started`.
    place
        The place in which the pid is valid.
    touched
        A file that the process touches every `BEAT_SECONDS`.
    patience
        Seconds without a touch after which a process that cannot be seen from here counts as
        ended.

    Raises
    ------
    OSError
        If the file does not exist or cannot be read.
    """
    if place.seen_from_here:
        return runs(pid, created)
    if place.before_this_boot:  # if another machine has the same names, it touches the file
        patience = min(patience, SILENT_SECONDS)
    return time.time() - touched.stat().st_mtime < patience


def runs(pid: int, created: float) -> bool:
    """Whether the process with this pid and start time still runs here."""
    try:
        return is_still(pid, created) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_still(pid: int, start: float) -> bool:
    """Whether a pid of this place is still the process that was started then (see `started`)."""
    try:
        return abs(started(pid) - start) < SAME_SECONDS
    except psutil.Error:
        return False


def now() -> float:
    """Return the present time as `started` counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


def started(pid: int) -> float:
    """Return the start time of a process, which differs between processes with the same pid.

    In seconds, on Linux since boot: a time of day would change with the clock, for example when a
    virtual machine wakes up.

    Raises
    ------
    psutil.Error
        If there is no such process.
    """
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return int(told.rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
