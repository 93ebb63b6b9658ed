"""Rich display of a script: what `display` and matplotlib show goes to the hub. Main thread."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbdist.wire.messages import Display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbdist.rank.output import Log
    from nbdist.rank.program import Program
    from nbdist.wire.messages import Message

SHOWS = re.compile(r"\bdisplay\b|\bmatplotlib\b|\bIPython\b")
"""A script without any of these shows nothing, and is spared a shell (some 0.1 s)."""


@contextmanager
def rich_display(
    program: Program, text: str, log: Log, send: Callable[[Message], None] | None
) -> Iterator[None]:
    """Send what the script in `text` displays meanwhile, at the place of the log it belongs to.

    Without `send` its plain text goes to the log.
    """
    if not SHOWS.search(text):
        yield
        return
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from nbdist.rank.output import RichDisplay, as_text

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

    def show(kind: str, content: dict[str, Any]) -> None:
        if send is None:
            as_text(kind, content)
        else:
            send(Display(program.job, log.size(), kind, content))

    with RichDisplay(shell).to(show):
        yield
        if "matplotlib.pyplot" in sys.modules and "matplotlib_inline" in sys.modules:
            from matplotlib_inline.backend_inline import flush_figures

            flush_figures()
