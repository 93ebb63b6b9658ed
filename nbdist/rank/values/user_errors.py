"""Texts and tracebacks of exceptions from the user's code, safely and quickly."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import os
import pickle
import re
import sys
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

MOST_FRAMES = 25
"""The most frames that are shown at either end of a traceback."""


RAISED = (Exception, SystemExit, asyncio.CancelledError)
"""Exceptions of the user's code that are caught while we examine an object, those that end the
process included. Not KeyboardInterrupt, which may be the user's, nor our own `OutOfTime`."""


def make_quick_to_show(error: BaseException | None) -> None:
    """Prepare the tracebacks of an exception and its causes, so that formatting is fast."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        _shorten(error)
        for trace in traces_of(error):
            _note_module(trace.tb_frame)
        error = error.__cause__ or error.__context__


def traces_of(error: BaseException) -> Iterator[TracebackType]:
    """Yield the places of a traceback, from the outermost to where it was raised."""
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _shorten(error: BaseException) -> None:
    """Remove the middle of a very long traceback: a thousand frames take seconds to format."""
    traces = list(traces_of(error))
    if len(traces) > 2 * MOST_FRAMES:
        traces[MOST_FRAMES - 1].tb_next = traces[-MOST_FRAMES]
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"({len(traces) - 2 * MOST_FRAMES} frames are not shown)")


def _note_module(frame: FrameType) -> None:
    """Register a frame's file in `inspect` with its module.

    Otherwise `inspect` searches all imported modules, some thousands, five times for a cell's
    frame.
    """
    path, name = frame.f_code.co_filename, frame.f_globals.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if not isinstance(module, ModuleType) or vars(module) is not frame.f_globals:
        return
    # Otherwise `inspect` might ask the module for the source of another file.
    if path in linecache.cache or path == vars(module).get("__file__"):
        with suppress(FileNotFoundError):  # the working directory was removed
            for each in (path, os.path.abspath(path)):  # noqa: PTH100 - as `inspect` makes it
                inspect.modulesbyfile.setdefault(each, name)


LIBRARIES = re.compile(r"[\\/](site|dist)-packages[\\/]")


BELOW = {"nbdist", "torch", "torch_xla", "tensorflow", "horovod"} | sys.stdlib_module_names
"""Packages in which a place tells a person little about where a training is."""


MADE = "<string>"
"""The file of code that a library has made of a text, as TensorFlow makes its operations."""


def innermost(traces: list[TracebackType]) -> TracebackType | None:
    """Return the last of these places that is the user's own, or else that of a library."""
    theirs = None
    for trace in reversed(traces):
        if _package(trace) in BELOW or trace.tb_frame.f_code.co_filename == MADE:
            continue
        if not LIBRARIES.search(trace.tb_frame.f_code.co_filename):
            return trace
        theirs = theirs or trace
    return theirs


PARSERS = {"argparse", "click", "fire", "tyro"}
MISUSED = 2
"""Libraries that parse a program's arguments, and their exit code for wrong arguments."""
ARGUMENTS = "give the cell's arguments after ` -- ` in the line of the magic"


def text_of(error: BaseException) -> str:
    """Return an exception's message."""
    try:
        ended = isinstance(error, SystemExit) and error.code == MISUSED
        if ended and _raised_in(error) in PARSERS:
            return f"{MISUSED}: {ARGUMENTS}"
        return str(error)
    except RAISED as err:  # the user's __str__ may raise anything
        return f"(its text cannot be shown: {err!r})"


def _raised_in(error: BaseException) -> str:
    """Return the top-level package of the innermost frame."""
    package = ""
    for trace in traces_of(error):
        package = _package(trace)
    return package


def _package(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


class CannotTravel(pickle.PicklingError):
    """Raised while pickling; the text says why the value cannot be sent."""
