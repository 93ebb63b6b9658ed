"""Guards for code that examines the user's values: no output, and a time limit. Main thread.

They are used between cells. A user's property or `__dir__` may print, raise or run forever; output
between cells would appear in the next cell.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutOfTime(BaseException):
    """Raised in the running code when the time is up; `except Exception` does not catch it."""


class _Muted:
    """A stream that discards the output of one thread, but not of the user's other threads."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return len(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:  # the stream's
        return getattr(self._stream, name)


@contextmanager
def silence() -> Iterator[None]:
    """Discard this thread's output meanwhile."""
    kept = sys.stdout, sys.stderr, sys.excepthook
    sys.stdout, sys.stderr = _Muted(sys.stdout), _Muted(sys.stderr)
    sys.excepthook = lambda *_: None  # IPython's completer calls it with its matchers' errors
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.excepthook = kept


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the Python code that still runs after this time.

    The timer interrupts the main thread by SIGINT, which the engine ignores between cells.
    """
    main = threading.get_ident()
    running = True

    def stop(*_: object) -> None:
        if running:
            raise OutOfTime

    kept = signal.signal(signal.SIGINT, stop)
    clock = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    clock.name, clock.daemon = "nbdist-clock", True
    clock.start()
    try:
        try:
            yield
        finally:
            running = False
    finally:
        clock.cancel()
        clock.join()
        signal.signal(signal.SIGINT, kept)
