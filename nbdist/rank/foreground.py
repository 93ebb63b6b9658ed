"""Interrupts this process and the programs that its code waits for, as a terminal does.

A terminal, and Jupyter for a plain kernel, signal a whole process group. A rank leads a group of
its own, with the programs in it that made no other one (``os.system``, ``subprocess``). It gets
each signal alone, on its main thread, so we pass it on.
"""

from __future__ import annotations

import _thread
import os
import signal
from contextlib import suppress
from multiprocessing import process
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbdist.machine.process_lives import now, started

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDED = 0.01
"""The unit of start times, which are rounded down."""


def interrupt_thread(main: int) -> None:
    """Send SIGINT to the main thread. Any thread."""
    if _ignored():
        _thread.interrupt_main()  # as if the signal had come: `os.system` ignores it in C
    else:
        signal.pthread_kill(main, signal.SIGINT)


def _ignored() -> bool:
    """Whether the system discards SIGINT, although Python has a handler."""
    with suppress(OSError):  # a system without /proc
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1)
    return False


class Foreground:
    """The programs that this process's code has started since `begin`."""

    def __init__(self) -> None:
        self._began = 0.0
        self._told: set[psutil.Process] = set()

    def begin(self) -> None:
        """Leave alone what runs already, such as a server that an earlier cell has started."""
        self._began = now()
        self._told.clear()

    def interrupt(self) -> None:
        """Send SIGINT to them, once to each: a second one would end what saves its work.

        Any thread. Programs that have made a session or group of their own are left alone, as a
        terminal does. So are workers that the code's own process ends (of a loader, of a pool).
        """
        with suppress(psutil.Error, OSError):
            for program in set(self._programs()) - self._told:
                self._told.add(program)
                with suppress(psutil.Error):
                    program.send_signal(signal.SIGINT)

    def _programs(self) -> Iterator[psutil.Process]:
        ours, workers = os.getpgid(0), _workers()
        for child in psutil.Process().children():
            if child.pid in workers or started(child.pid) < self._began - ROUNDED:
                continue
            for each in (child, *child.children(recursive=True)):
                with suppress(OSError):
                    if os.getpgid(each.pid) == ours:
                        yield each


def _workers() -> set[int | None]:
    """Return the pids of Python's own workers that end with this process."""
    # Not `active_children`, which reaps those that have ended, beside the main thread.
    children = list(process._children)  # type: ignore[attr-defined]
    return {child.pid for child in children if child.daemon}
