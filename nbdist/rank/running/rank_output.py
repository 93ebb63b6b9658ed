"""A rank's output during a cell: descriptors 1 and 2 are its log file.

Everything here runs on the rank's main thread. Because the descriptors themselves point at the
log, what C libraries and child processes print is in it too, in order, and the last words before
a crash are on disk already.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Log:
    """The rank's log file, and streams that write to it without any buffer of ours.

    From the first cell on, the log has the process's output. So what a thread prints after its
    cell is in the log too, a logging handler made in one cell writes to the same stream in the
    next, and so does whatever the user has put in the place of `sys.stdout`.
    """

    def __init__(self) -> None:
        self._path = ""
        self._fd = -1

    def take(self, path: str) -> None:
        """Point descriptors 1 and 2, `sys.stdout` and `sys.stderr` at the log."""
        if path != self._path:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if self._fd >= 0:
                os.close(self._fd)
            else:
                sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
            self._path, self._fd = path, fd
        for name, fd in (("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name)
            if stream is None or getattr(stream, "closed", False):
                setattr(sys, name, _unbuffered(fd))
        # Also when they should be there already: a cell may have redirected them for good.
        os.dup2(self._fd, 1)
        os.dup2(self._fd, 2)

    def write_lines(self) -> None:
        """Have `sys.stdout` write whole lines, and so forks that share it: they mix no words."""
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True, write_through=False)

    def size(self) -> int:
        """Return how many bytes the log holds."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Let go of the file; the process's output has been given to others."""
        if self._fd >= 0:
            os.close(self._fd)
            self._path, self._fd = "", -1


@contextmanager
def lent(out: Any, err: Any) -> Iterator[None]:  # text streams that have a descriptor
    """Give the process's output, descriptors included, to others meanwhile."""
    streams, saved = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))
    sys.stdout, sys.stderr = out, err
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for fd, kept in zip((1, 2), saved, strict=True):
            os.dup2(kept, fd)
            os.close(kept)


@contextmanager
def given_back() -> Iterator[None]:
    """Give the process's output back afterwards, to whom it belonged; meanwhile a log may take it.

    What was made before, a logging handler say, writes to the kernel's own streams, which do not
    use the descriptors: these streams are redirected, too.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    streams, saved = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))
    owned = [(stream, fd) for stream, fd in zip(streams, (1, 2), strict=True) if _kernels(stream)]
    for stream, fd in owned:
        vars(stream)["write"] = lambda text, fd=fd: _write(fd, text)
    try:
        yield
    finally:
        for stream, _ in owned:
            vars(stream).pop("write", None)
        sys.stdout, sys.stderr = streams
        for fd, kept in zip((1, 2), saved, strict=True):
            os.dup2(kept, fd)
            os.close(kept)


def _kernels(stream: object) -> bool:
    """Whether this is one of a kernel's streams, which send messages."""
    return hasattr(stream, "pub_thread")


def _write(fd: int, text: str) -> int:
    data = memoryview(text.encode(errors="backslashreplace"))
    while data:
        data = data[os.write(fd, data) :]
    return len(text)


def _unbuffered(fd: int) -> io.TextIOWrapper:
    # Straight to the descriptor: nothing waits in a buffer when the process dies, and prints keep
    # their order with what C code writes.
    return io.TextIOWrapper(
        io.FileIO(fd, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )
