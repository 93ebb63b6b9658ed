"""Releases objects that IPython keeps: the last exception, `_` and `Out`. Main thread.

On a rank they may hold a model's activations on a GPU, and the next cell needs this memory.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from IPython.core.interactiveshell import InteractiveShell

LAST = ("last_type", "last_value", "last_traceback", "last_exc")


def empty_frames(error: BaseException | None) -> None:
    """Clear the local variables in the tracebacks of an exception and its causes.

    `%tb` can still show the traceback, whose lines need no variables.
    """
    for trace in _traces(error):
        try:
            trace.tb_frame.clear()
            # Before Python 3.13 `f_locals` is a copy, made when the traceback was shown. Reading it
            # updates the copy to the cleared frame.
            _ = trace.tb_frame.f_locals
        except RuntimeError:  # a running frame: a caller of the cell, or the user's generator
            continue


def _traces(error: BaseException | None) -> Iterator[TracebackType]:
    waiting, known = [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
        trace = one.__traceback__
        while trace is not None:
            yield trace
            trace = trace.tb_next


def keep_error(error: BaseException) -> None:
    """Keep an exception that is not shown, for `%tb`."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error


def forget_error(shell: InteractiveShell) -> None:
    """Release the last exception itself, whose attributes may be large, too."""
    empty_frames(getattr(sys, "last_value", None))
    for name in LAST:
        if hasattr(sys, name):
            delattr(sys, name)
    result = shell.last_execution_result
    if result is not None:
        result.error_before_exec = result.error_in_exec = None
    shell.InteractiveTB.tb = None
    shell.SyntaxTB.last_syntax_error = None


def forget_values(shell: InteractiveShell) -> None:
    """Release `_`, `Out` and the like, which `%px` cells fill."""
    space, hook = shell.user_ns, shell.displayhook
    for name in ("_", "__", "___"):
        if space.get(name) is getattr(hook, name, ""):
            space[name] = ""
        setattr(hook, name, "")
    out: dict[Any, Any] = space.get("_oh", {})
    for number in list(out):
        space.pop(f"_{number}", None)
    out.clear()
    if shell.last_execution_result is not None:
        shell.last_execution_result.result = None
