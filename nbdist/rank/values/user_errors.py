"""What a user's exception says, however odd it is, and what we say of a user's object."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import os
import pickle
import sys
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

MOST_FRAMES = 25
"""Frames shown at either end of a traceback."""


RAISED = (Exception, SystemExit, asyncio.CancelledError)
"""What code of a user's may raise that an object runs when it is looked at: also what would end
this process. A KeyboardInterrupt may be a person's, and `OutOfTime` is ours."""


def make_quick_to_show(error: BaseException | None) -> None:
    """Prepare the tracebacks of an exception, and of those that led to it, to be formatted."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        _shorten(error)
        for trace in _traces(error):
            _note_module(trace.tb_frame)
        error = error.__cause__ or error.__context__


def _traces(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _shorten(error: BaseException) -> None:
    """Cut the middle out of a very long traceback: a thousand frames would take seconds to show."""
    traces = list(_traces(error))
    if len(traces) > 2 * MOST_FRAMES:
        traces[MOST_FRAMES - 1].tb_next = traces[-MOST_FRAMES]
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"({len(traces) - 2 * MOST_FRAMES} frames are not shown)")


def _note_module(frame: FrameType) -> None:
    """Tell `inspect` of which module a frame is.

    For a cell's it would go through all that are imported, some thousands, five times a frame.
    """
    path, name = frame.f_code.co_filename, frame.f_globals.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if not isinstance(module, ModuleType) or vars(module) is not frame.f_globals:
        return
    # Else `inspect` might ask the module for the source of a file that is none of its.
    if path in linecache.cache or path == vars(module).get("__file__"):
        with suppress(FileNotFoundError):  # the working folder is gone
            for each in (path, os.path.abspath(path)):  # noqa: PTH100 - the one that `inspect` makes
                inspect.modulesbyfile.setdefault(each, name)


PARSERS = {"argparse", "click", "fire", "tyro"}
MISUSED = 2
"""Libraries that read a program's arguments, and what they end it with where they cannot."""
ARGUMENTS = "its arguments stand after ` -- ` in the magic's line"


def text_of(error: BaseException) -> str:
    """Return an exception's message."""
    try:
        ended = isinstance(error, SystemExit) and error.code == MISUSED
        if ended and _raised_in(error) in PARSERS:
            return f"{MISUSED}: {ARGUMENTS}"
        return str(error)
    except RAISED as err:  # a user's __str__ may raise anything
        return f"(its text cannot be shown: {err!r})"


def _raised_in(error: BaseException) -> str:
    """Return the library that has raised it."""
    trace, module = error.__traceback__, ""
    while trace is not None:
        module, trace = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_next
    return module.partition(".")[0]


class CannotTravel(pickle.PicklingError):
    """Raised while pickling; the text says what is in the way."""
