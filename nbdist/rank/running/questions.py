"""Replaces `input()` and `breakpoint()` in cells on a rank by errors that say what to do."""

from __future__ import annotations

import builtins
import getpass
import pdb  # noqa: T100 - to keep it from waiting
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from IPython.core.getipython import get_ipython

from nbdist.errors import NbdistError


class NobodyThereError(NbdistError):
    """A cell asked for input. Its traceback ends in the cell, not in our code."""

    def _render_traceback_(self) -> list[str]:
        trace = self.__traceback__
        while trace is not None and trace.tb_next is not None:
            if trace.tb_next.tb_next is None:
                trace.tb_next = None
                break
            trace = trace.tb_next
        shell = get_ipython()
        assert shell is not None  # a rank's cell is running
        lines: list[str] = shell.InteractiveTB.structured_traceback(
            type(self), self, self.__traceback__
        )
        return lines


def refuse_input(prompt: object = "", /, *_: object, **__: object) -> str:
    """Replace `input()` and `getpass()`."""
    msg = (
        f"input({str(prompt)!r}) was called on a rank, where nobody can answer. Ask in a plain "
        "cell of the notebook and send the answer along, for instance with --env."
    )
    raise NobodyThereError(msg)


def refuse_breakpoint(*_: object, **__: object) -> None:
    """Replace `breakpoint()` and `pdb.set_trace()`."""
    msg = (
        "breakpoint() was called on a rank, where no debugger can attach to the cell. "
        "Use `%dist stacks` to see where every rank is, or print what you need."
    )
    raise NobodyThereError(msg)


@contextmanager
def no_questions() -> Iterator[None]:
    """Refuse questions meanwhile."""
    kept = builtins.input, getpass.getpass, sys.breakpointhook, pdb.set_trace
    builtins.input = getpass.getpass = refuse_input
    sys.breakpointhook = pdb.set_trace = refuse_breakpoint
    try:
        yield
    finally:
        builtins.input, getpass.getpass, sys.breakpointhook, pdb.set_trace = kept
