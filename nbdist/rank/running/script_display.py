"""Rich display of a script: sends `display(...)` and matplotlib figures to the hub. Main thread."""

from __future__ import annotations

import ast
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbdist.wire.messages import Display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.rank.running.rank_output import Log
    from nbdist.wire.messages import Message

SHOWS = re.compile(r"\bdisplay\b|\bmatplotlib\b|\bIPython\b")
"""A script without these words has no rich display, and needs no shell (0.1 s)."""


LAST = "__nbdist_show__"
"""The name of the function that gets the value of a cell's last expression."""


class Showing:
    """Sends a script's displays to the hub, with their positions in the log.

    Parameters
    ----------
    job, log
        The job, and the log of its output.
    send
        Sends a message; if None, the plain text of displays goes to the log.
    """

    def __init__(self, job: str, log: Log, send: Callable[[Message], None] | None) -> None:
        self._job, self._log, self._send = job, log, send

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Receive the displays of the script in `text` meanwhile."""
        if not SHOWS.search(text):
            yield
            return
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        with self._taking():
            yield
            if "matplotlib.pyplot" in sys.modules and "matplotlib_inline" in sys.modules:
                from matplotlib_inline.backend_inline import flush_figures

                flush_figures()

    def value(self, value: object) -> None:
        """Display the value of the cell's last expression, as a notebook does."""
        if value is not None:
            with self._taking() as shell:
                shell.displayhook(value)

    @contextmanager
    def _taking(self) -> Iterator[InteractiveShell]:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        from nbdist.rank.running.display import RichDisplay

        config = Config()
        config.HistoryManager.enabled = False
        shell = InteractiveShell.instance(config=config)
        with RichDisplay(shell).to(self._show):
            yield shell

    def _show(self, kind: str, content: dict[str, Any]) -> None:
        from nbdist.rank.running.display import as_text

        if self._send is None:
            as_text(kind, content)
        else:
            self._send(Display(self._job, self._log.size(), kind, content))


def last_shown(tree: ast.Module, first: int, count: int) -> ast.Module:
    """Return a script whose cell passes the value of its last expression to `LAST`.

    Parameters
    ----------
    tree
        The script, changed in place.
    first, count
        The cell's first line in the script, and its number of lines.
    """
    lines = range(first, first + count)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or getattr(node, "lineno", 0) >= first:
            continue
        inside = [at for at, statement in enumerate(body) if statement.lineno in lines]
        last = body[inside[-1]] if inside else None
        if isinstance(last, ast.Expr):
            call = ast.Call(ast.Name(LAST, ast.Load()), [last.value], [])
            last.value = ast.fix_missing_locations(ast.copy_location(call, last.value))
    return tree
