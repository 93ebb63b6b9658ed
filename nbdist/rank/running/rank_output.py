"""A rank's output during a cell: file descriptors 1 and 2 are its log file. Main thread.

Because the file descriptors themselves point to the log, output of C libraries and child processes
is in the log, too, in the right order, and output before a crash is on disk already.
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
    """The rank's log file, and unbuffered streams that write to it.

    From the first cell on, the log gets all output of the process. So it also contains what a
    thread prints after its cell, and what a logging handler of an earlier cell, or the user's own
    replacement of `sys.stdout`, writes.
    """

    def __init__(self) -> None:
        self._path = ""
        self._fd = -1

    def take(self, path: str) -> None:
        """Redirect file descriptors 1 and 2, `sys.stdout` and `sys.stderr` to the log."""
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
        # Always: a cell may have redirected them for good.
        os.dup2(self._fd, 1)
        os.dup2(self._fd, 2)

    def write_lines(self) -> None:
        """Make `sys.stdout` write whole lines, so that the output of forks is not mixed."""
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True, write_through=False)

    def size(self) -> int:
        """Return how many bytes the log holds."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the file; the process's output goes elsewhere already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._path, self._fd = "", -1


@contextmanager
def lent(out: Any, err: Any) -> Iterator[None]:  # text streams with a file descriptor
    """Redirect the process's output, file descriptors included, to these streams meanwhile."""
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
    """Restore the process's output afterwards; meanwhile a `Log` may redirect it.

    Objects made before, such as a logging handler, write to the kernel's own streams, which do not
    use the file descriptors: these streams are redirected, too.
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
    """Whether a stream is a kernel's own, which sends messages."""
    return hasattr(stream, "pub_thread")


def _write(fd: int, text: str) -> int:
    data = memoryview(text.encode(errors="backslashreplace"))
    while data:
        data = data[os.write(fd, data) :]
    return len(text)


def _unbuffered(fd: int) -> io.TextIOWrapper:
    # Unbuffered: no output is lost when the process dies, and the order with output of C code is
    # kept.
    return io.TextIOWrapper(
        io.FileIO(fd, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )
