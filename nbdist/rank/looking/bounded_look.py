"""Looking at a user's values: in silence, and not for long. Main thread, between cells.

A property or a `__dir__` of the user's may print, raise or take forever; what is printed between
cells would show up in the next one.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutOfTime(BaseException):
    """Raised in whatever runs when the time is up; no `except Exception` stops it."""


class _Muted:
    """A stream that takes nothing from one thread; the user's other threads print on."""

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
    """Print nothing of what this thread prints meanwhile."""
    kept = sys.stdout, sys.stderr, sys.excepthook
    sys.stdout, sys.stderr = _Muted(sys.stdout), _Muted(sys.stderr)
    sys.excepthook = lambda *_: None  # IPython's completer tells it of what matchers raise
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.excepthook = kept


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the Python code that still runs after this time.

    Between cells the engine ignores SIGINT, so it is free to wake the main thread.
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
