"""Finds what tests leave behind: processes, shared memory, files, threads, environment variables.

A process belongs to the session if it has the session's mark in its environment, or descends from
the test process. A mark stays when a process gets another parent, so orphans are found, too. Each
worker of pytest-xdist has a mark of its own. Allowed are the processes of a kernel that is still
open, and those that were there when the test began, with their descendants.

Shared memory has no mark. A segment that another worker uses is mapped by a living process. A new
segment that no process maps was left behind.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbdist.machine import leftovers
from tests.helpers.kernel import KERNEL_MARK, open_kernels
from tests.helpers.processes import environment, memory_maps, runs
from tests.helpers.waiting import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SESSION_MARK = "NBDIST_TEST_SESSION"
SESSION = uuid.uuid4().hex
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the system's folder, listed and never written
OF_TENSORFLOW = "__autograph_generated_file"

Identity = tuple[int, float]
"""Pid and start time, as pids are reused."""


class Watch:
    """Remembers what was there when it was made; `check` reports what has come since and stayed.

    Parameters
    ----------
    scratch : Path
        The session's folder: ``tmp`` in it is ``TMPDIR``, each folder in ``homes`` the
        ``NBDIST_HOME`` of a kernel.
    grace : float
        Seconds that things may take to disappear on an idle machine.
    """

    def __init__(self, scratch: Path, grace: float = 5.0) -> None:
        self.scratch = scratch
        self.grace = grace
        self._processes = {_identity(process) for process in _ours()}
        self._segments = _segments()
        self._files = set(self._state_files())
        self._threads = set(threading.enumerate())
        self._environment = dict(os.environ)
        self._main = sys.modules["__main__"]

    def check(self) -> list[str]:
        """Return a line for each thing left behind, after waiting for it and removing it."""
        deadline = Deadline(self.grace)
        left = self._left()
        while any(left) and not deadline.over:
            time.sleep(0.05)
            left = self._left()  # the report is about this look
        processes, files, segments, threads = left
        lines = [_describe(process) for process in processes]
        lines += [f"file {path}" for path in (*files, *segments)]
        lines += [f"thread {thread.name} in the test process" for thread in threads]
        lines += self._restored()
        _kill(processes)
        _remove((*files, *segments))
        return lines

    def _left(self) -> tuple[list[psutil.Process], list[Path], list[Path], list[threading.Thread]]:
        processes = [process for process in _ours() if not self._allowed(process)]
        return (
            processes,
            [path for path in self._state_files() if path not in self._files],
            _not_mapped(_segments() - self._segments),
            [
                thread
                for thread in set(threading.enumerate()) - self._threads
                if thread.name.startswith("nbdist")
            ],
        )

    def _restored(self) -> list[str]:
        """Restore the environment and main module of this process; return a line for each change.

        Otherwise a later test, or its kernel, would inherit the changes.
        """
        changed = [] if sys.modules["__main__"] is self._main else ["another main module"]
        sys.modules["__main__"] = self._main
        was, now = self._environment, dict(os.environ)
        names = {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}
        names.discard("PYTEST_CURRENT_TEST")
        for name in names:
            os.environ.pop(name, None)
            if name in was:
                os.environ[name] = was[name]
        return changed + [
            f"environment {name}: {was.get(name)} became {now.get(name)}" for name in sorted(names)
        ]

    def _allowed(self, process: psutil.Process) -> bool:
        """Whether the process, or one of its parents, was there before."""
        return any(_identity(each) in self._processes for each in _line(process))

    def _state_files(self) -> Iterable[Path]:
        """Return the cluster folders of kernels that have ended, and files in the temp folder."""
        open_homes = [kernel.home for kernel in open_kernels.values()]
        for home in (self.scratch / "homes").iterdir():
            if home not in open_homes:
                yield from home.glob("clusters/*")
        of_clusters = {temp for home in open_homes for temp in _temp_folders(home)}
        for path in (self.scratch / "tmp").iterdir():
            # The first kind is torch's cache, which is kept between runs. The second is code that
            # TensorFlow generates: it removes the files when a kernel ends, but not their bytecode.
            of_kernel = bool(open_kernels) and path.name.startswith(OF_TENSORFLOW)
            kept = path.name.startswith("torchinductor_") or of_kernel or _bytecode_of_it(path)
            if not (kept or path in of_clusters or _trial_of_tempfile(path)):
                yield path


def _temp_folders(home: Path) -> Iterator[Path]:
    """Return the temp folders of a kernel's clusters, which may be new in this test."""
    for folder in home.glob("clusters/*"):
        with suppress(OSError):  # gone meanwhile
            yield Path(leftovers.owner(folder).temp)


def _bytecode_of_it(path: Path) -> bool:
    if path.name != "__pycache__":
        return False
    with suppress(OSError):  # gone meanwhile
        return all(file.name.startswith(OF_TENSORFLOW) for file in path.iterdir())
    return True


def _trial_of_tempfile(path: Path) -> bool:
    """Whether the file is a trial of Python's `tempfile`, left by a process that was killed."""
    try:
        return len(path.name) == 8 and path.is_file() and path.read_bytes() in {b"", b"blat"}
    except OSError:
        return False


def _ours() -> list[psutil.Process]:
    """Return the session's processes, without this one and those of open kernels."""
    found = []
    family = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        of_ours = process in family or environment(process).get(SESSION_MARK) == SESSION
        if of_ours and not _of_open_kernel(process) and runs(process):
            found.append(process)
    return found


def _of_open_kernel(process: psutil.Process) -> bool:
    """Whether a process has an open kernel's mark; if it has no environment, its parents count."""
    environments = (found for each in _line(process) if (found := environment(each)))
    return next(environments, {}).get(KERNEL_MARK) in open_kernels


def _line(process: psutil.Process) -> Iterator[psutil.Process]:
    """Return a process and its parents; the parents are looked up only if needed."""
    yield process
    with suppress(psutil.Error):
        yield from process.parents()


def _identity(process: psutil.Process) -> Identity:
    try:
        return process.pid, process.create_time()
    except psutil.Error:
        return process.pid, 0.0


def _describe(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())[:160]
        return f"process {process.pid} ({process.status()}, parent {process.ppid()}): {command}"
    except psutil.Error:
        return f"process {process.pid}, which ended meanwhile"


def _segments() -> set[Path]:
    """Return the user's shared memory."""
    found = set()
    for path in SHARED_MEMORY.glob("*"):
        with suppress(OSError):  # gone meanwhile
            if path.stat().st_uid == os.getuid():
                found.add(path)
    return found


def _not_mapped(segments: set[Path]) -> list[Path]:
    if not segments:
        return []
    maps = "\n".join(memory_maps(process) for process in psutil.process_iter())
    left = sorted(path for path in segments if path.exists() and _place(path) not in maps)
    if any(map(_of_multiprocessing, left)) and is_tracked_beside():
        return [path for path in left if not _of_multiprocessing(path)]
    return left


def _of_multiprocessing(path: Path) -> bool:
    return path.name.startswith("sem.mp-")


def is_tracked_beside() -> bool:
    """Whether another worker has a resource tracker of multiprocessing.

    A tracker removes the semaphores of a killed rank, but only when all processes that use the
    tracker have ended; and a semaphore's name does not show its owner. Semaphores that no tracker
    removes are found by the last worker at the end of its session.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            beside = environment(process).get(SESSION_MARK, SESSION) != SESSION
            if beside and "multiprocessing.resource_tracker" in command:
                return True
    return False


def _place(path: Path) -> str:
    """Return a file's device and number, as in `maps`: there a semaphore has another name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""  # gone meanwhile
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return f" {device} {found.st_ino} "


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
