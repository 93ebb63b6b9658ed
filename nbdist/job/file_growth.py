"""Notifies when files grow, so that nobody has to poll them. Hub's thread.

Linux reports (inotify) what processes of this machine write. On other systems, and for files that
other hosts write, this module polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

IN_MODIFY = 2
"""The event of inotify(7) for a write."""
ROOM = 1 << 16
"""Bytes of events that are read at a time; their content does not matter."""


class Growth:
    """Waits for files to grow."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._watched: set[Path] = set()
        self._inotify = -1
        self._refused = False
        """Whether inotify is missing or its limit is reached."""

    def sees(self, files: Iterable[Path]) -> bool:
        """Watch files from now on; return whether all of them were watched before.

        A new file must be read once more, as earlier writes to it are not notified.
        """
        before = set(self._watched)
        for path in files:
            if path not in before and not self._refused:
                try:
                    self._watch(path)
                except FileNotFoundError:
                    return False
                except OSError:
                    self._refused = True
        return not self._refused and before == self._watched

    def _watch(self, path: Path) -> None:
        if self._inotify < 0:
            self._inotify = _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        _call("inotify_add_watch", self._inotify, os.fsencode(path), IN_MODIFY)
        self._watched.add(path)

    def wake(self) -> None:
        """End the running wait, or the next one."""
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Wait until a file has grown since the last wait, at most this many seconds."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self._news.set)
        if self._inotify >= 0:
            # Only during a wait: constant writes must not wake the event loop constantly.
            loop.add_reader(self._inotify, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()
            self._news.clear()
            if self._inotify >= 0:
                loop.remove_reader(self._inotify)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._inotify, ROOM)

    def close(self) -> None:
        """Stop watching."""
        if self._inotify >= 0:
            os.close(self._inotify)
            self._inotify = -1


def _call(function: str, *arguments: int | bytes) -> int:
    try:
        found = int(getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments))
    except AttributeError as err:  # not Linux
        raise OSError(str(err)) from err
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
