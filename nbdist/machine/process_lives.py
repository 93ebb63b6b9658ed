"""Whether a process is alive, on this host or on another host that shares a folder.

A pid says something only where it was given: on one host, until that starts again, and in one
namespace of pids, as each container has its own. There a process is known beyond doubt by its pid
and start time. Of any other nothing can be seen but a file that it touches every few seconds.
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
"""A process touches so often the files that show that it lives."""
SILENT_SECONDS = 60.0
"""One that cannot be seen from here, and has not done so for so long, is said to be gone."""
FORGOTTEN_SECONDS = 7 * 86400.0
"""After so long its files may be removed, too: a host may have been suspended, or cut off."""
SAME_SECONDS = 0.005
"""Half of what the system counts starts in."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a pid is one process's; what this system does not tell is ''."""

    host: str = ""
    machine: str = ""
    """The machine's id; machines that were copied from one image may share it."""
    boot: str = ""
    """The id of this run of the machine's system; no two are the same."""
    pids: str = ""
    """The namespace of pids."""

    @property
    def name(self) -> str:
        """What tells it from all other places; '' where that is not known."""
        if sys.platform != "linux":
            return self.host
        return f"{self.boot} {self.pids}" if self.boot and self.pids else ""

    @property
    def seen_from_here(self) -> bool:
        """Whether pids of that place can be looked up in this process."""
        return bool(self.name) and self.name == here().name

    @property
    def before_this_boot(self) -> bool:
        """Whether it is this machine before it was started again, as far as names can say."""
        ours = here()
        same = bool(self.machine) and (self.host, self.machine) == (ours.host, ours.machine)
        return same and bool(self.boot and ours.boot) and self.boot != ours.boot

    @property
    def in_words(self) -> str:
        """Where it is, seen from here."""
        if self.boot and self.boot == here().boot and self.pids != here().pids:
            return f"in another container of this machine ({self.host})"
        if self.host == here().host:
            return f"on another machine or in another container that is called {self.host}, too"
        return f"on {self.host or 'an unknown host'}"


@functools.cache
def here() -> Place:
    """Return where this process is."""
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
    """Return the name of our namespace of pids, '' where /proc shows those of another one."""
    try:
        ours = str(Path("/proc/self").readlink()) == str(os.getpid())
        return str(Path("/proc/self/ns/pid").readlink()) if ours else ""
    except OSError:
        return ""


def lives(
    pid: int, created: float, place: Place, touched: Path, patience: float = SILENT_SECONDS
) -> bool:
    """Whether a process lives, as far as that can be known here.

    Parameters
    ----------
    pid, created
        What it is known by, see `started`.
    place
        Where.
    touched
        A file that it touches every `BEAT_SECONDS`.
    patience
        Seconds without that after which one that cannot be seen from here counts as gone.

    Raises
    ------
    OSError
        If the file is not there, or cannot be asked.
    """
    if place.seen_from_here:
        return runs(pid, created)
    if place.before_this_boot:  # unless another machine has the same names: then it is not silent
        patience = min(patience, SILENT_SECONDS)
    return time.time() - touched.stat().st_mtime < patience


def runs(pid: int, created: float) -> bool:
    """Whether this very process, named by its start time too, still runs here."""
    try:
        return is_still(pid, created) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_still(pid: int, start: float) -> bool:
    """Whether a pid of this place still is the process that was `started` then."""
    try:
        return abs(started(pid) - start) < SAME_SECONDS
    except psutil.Error:
        return False


def started(pid: int) -> float:
    """Return what tells a process from another one that had its pid: when it was started.

    In seconds, on Linux since the system's own start: a time of day would change with the clock,
    when a virtual machine wakes up, say.

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
