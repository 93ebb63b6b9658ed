"""What nbdist's processes need of the operating system and of Python's internals."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CANARY_SECONDS = 10.0
KILL_SECONDS = 5.0
"""A process that survives SIGKILL for so long waits in the system, for a lost disk say."""
CGROUPS = Path("/sys/fs/cgroup")
CUDA_ERROR_NOT_INITIALIZED = 3
OOM_SCORE = Path("/proc/self/oom_score_adj")
OOM_HANDICAP = 150
"""Added to the parent's OOM score, in thousandths of all memory; browsers do so with their tabs."""
NO_FORK = "NBDIST_NO_FORK"
"""NBDIST_NO_FORK: with any value, ranks are started as new processes, not as forks of the warm
process."""


def adopt_orphans() -> None:
    """Become the parent of our descendants' orphans, so that they can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read (an `opener`)."""
    return os.open(path, flags, 0o600)


def write_whole(path: Path, data: bytes) -> None:
    """Write a private file, whole or not at all: a reader never sees half of it."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb", opener=private) as file:
        file.write(data)
    part.replace(path)


def environ_anywhere() -> dict[str, str]:
    """Return the environment in which Python finds the same modules in any working folder.

    Our processes start in folders of ours: in the notebook's folder, a file named like a module of
    Python (``random.py``) would be imported instead, and the folder may have been removed.
    """
    path = os.environ.get("PYTHONPATH")
    if not path:
        return dict(os.environ)
    places = [place for place in path.split(os.pathsep) if place]
    with contextlib.suppress(FileNotFoundError):  # removed, with all that is relative to it
        places = [os.path.abspath(place) for place in places]  # noqa: PTH100  # links stay
    return os.environ | {"PYTHONPATH": os.pathsep.join(places)}


def kill_session(leader: int) -> None:
    """SIGKILL every process of a session; its id is not given again while one of them lives."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def kill_descendants(chosen: Callable[[psutil.Process], bool] = lambda _: True) -> None:
    """SIGKILL the descendants of this process, until none of them runs.

    One pass is not enough: a process may start another one after it was listed, and a process whose
    parent ends at that moment is in no list. With `adopt_orphans` the next pass finds both.

    Parameters
    ----------
    chosen : callable, optional
        Whether to end a process; may raise `psutil.Error` or `OSError` for a process that has
        ended.
    """
    until = time.monotonic() + KILL_SECONDS
    while (left := _running_descendants(chosen)) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.005)


def _running_descendants(chosen: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    everyone: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error, OSError):  # no file descriptor is left
        everyone = psutil.Process().children(recursive=True)
    found = []
    for process in everyone:
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and chosen(process):
                found.append(process)
    return found


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause garbage collection while the body imports: this saves a sixth of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def die_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def be_killed_before_parent() -> None:
    """When memory runs out, have Linux kill this process before the one that started it.

    Of processes of one size Linux kills the one with the highest score. The end of the warm process
    costs all ranks, not one; the end of the kernel also costs the notebook's variables.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):  # /proc may be read-only
            score = int(OOM_SCORE.read_text(encoding="ascii"))
            OOM_SCORE.write_text(str(min(score + OOM_HANDICAP, 1000)), encoding="ascii")


def oom_kills() -> int | None:
    """Return how often Linux has killed for lack of memory in this process's control group.

    If the group has no counter, return the whole host's number; None if there is none either.
    """
    for path in _oom_counters():
        with contextlib.suppress(OSError):
            for line in path.read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


def _oom_counters() -> Iterator[Path]:
    """Yield the files with such a counter, the nearest first; some may not exist."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            places = (group[1:], "")  # a container may see its own group as the root
            if controllers == "memory":  # first version of control groups
                yield from (CGROUPS / "memory" / place / "memory.oom_control" for place in places)
            elif not controllers:  # second version
                yield from (CGROUPS / place / "memory.events.local" for place in places)
    yield Path("/proc/vmstat")


def torch_version() -> str:
    """Return the version of torch if it was imported, else ''."""
    torch = sys.modules.get("torch")
    return str(torch.__version__) if torch is not None else ""


def why_not_fork(*, canary: bool = True) -> str:
    """Say why ranks cannot be forked from this process, '' if they can."""
    if os.environ.get(NO_FORK):
        return f"{NO_FORK} is set"
    if not hasattr(os, "fork") or sys.platform == "darwin":
        return f"{sys.platform} cannot fork a process with these libraries safely"
    if gpu_is_open():
        return "an import opened the GPU in the warm process"
    try:
        if canary and "torch" in sys.modules and not _canary_lives():
            return "a forked process could not run a torch operation"
    except OSError as err:
        return f"no process could be forked: {err}"
    return ""


def gpu_is_open() -> bool:
    """Return whether CUDA's driver was initialized here; no fork of this process could use a GPU.

    Open files of the GPU do not show it: NVML, which forks survive, opens them too.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # nothing has loaded the driver
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != CUDA_ERROR_NOT_INITIALIZED


def _canary_lives() -> bool:
    """Fork a child that uses torch's thread pool; a broken fork hangs or dies there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch = sys.modules["torch"]
            code = int(not float(torch.ones(300, 300).mm(torch.ones(300, 300)).sum()) > 0)
        finally:  # also after an error: the child must never run our loop
            os._exit(code)
    deadline = time.monotonic() + CANARY_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False
