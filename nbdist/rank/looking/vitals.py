"""What a rank is doing: its stacks, the cell's current line, its memory. Any thread."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbdist.backends.groups import wait_time
from nbdist.wire.inspection import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 5
"""This signal makes a rank write all stacks to its dump file, even if C code holds the GIL."""


def answer_stack_signal(path: str) -> None:
    """Let `STACKS_SIGNAL` write this process's stacks to `path` from within the signal handler."""
    # The file stays open until the process ends: a signal handler must not open files.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    dump = os.fdopen(handle, "w", encoding="utf-8")
    faulthandler.register(STACKS_SIGNAL, file=dump, all_threads=True, chain=False)


def stacks(
    main: int,
    engine: Collection[int],
    cell: str,
    named: Callable[[traceback.FrameSummary], traceback.FrameSummary] = lambda frame: frame,
) -> str:
    """Return the Python stacks of the user's threads, the main thread's first.

    Parameters
    ----------
    main
        The ident of the main thread.
    engine
        The idents of the engine's own threads, which are left out like ours.
    cell
        The running cell's file name; frames that called the cell are left out.
    named
        Replaces a frame's file name and line by those that the user knows.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    parts = []
    for ident in sorted(frames, key=lambda ident: ident != main):
        name = "main thread" if ident == main else f"thread {names.get(ident, ident)}"
        if ident in engine or names.get(ident, "").startswith("nbdist-"):
            continue
        stack = traceback.extract_stack(frames[ident])
        first = next((i for i, frame in enumerate(stack) if frame.filename == cell), None)
        told = [named(frame) for frame in stack[first or 0 :]]
        if ident == main and first is None:
            parts.append(f"{name}: in no cell\n")
        else:
            parts.append(f"{name}:\n" + "".join(traceback.format_list(told)))
    return "\n".join(parts)


def line(thread: int, cell_line: Callable[[FrameType], int | None]) -> int | None:
    """Return the innermost line of the cell that a thread runs, None outside the cell.

    Parameters
    ----------
    thread
        The ident of the thread, which keeps running.
    cell_line
        Returns the line of a frame in the cell, None for other frames.
    """
    # Several tries: a generator that yields meanwhile has no link to its caller any more.
    for _look in range(3):
        frame = sys._current_frames().get(thread)
        while frame is not None:
            found = cell_line(frame)
            if found is not None:
                return found
            frame = frame.f_back
    return None


def where(main: int) -> str:
    """Describe in one line where the main thread is."""
    frame = sys._current_frames().get(main)
    if frame is not None and wait_time.is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return "ended"
    code = frame.f_code
    return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"


def memory() -> Memory:
    """Return this process's memory in bytes: resident (rss) and not shared (uss)."""
    full = psutil.Process().memory_full_info()
    return Memory(full.rss, getattr(full, "uss", None))
