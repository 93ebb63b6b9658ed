"""Shows a job's output in the running cell, in any front end. Kernel's main thread."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from IPython.display import clear_output, display

from nbdist.job.events import Notice, Shown, Text
from nbdist.machine.quoted_code import as_html
from nbdist.magics.showing.front_end import metrics_how
from nbdist.widgets.live_metrics import LiveMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.job.job import Job

THEME = "var(--jp-content-font-color1, var(--vscode-editor-foreground, inherit))"
"""The colour of text in JupyterLab's theme, or in VS Code's, which paints no text of ours."""
NOTICE_STYLE = (
    f"color:{THEME};padding:2px 8px;margin:2px 0;white-space:pre-wrap;border-left:3px solid"
)
WARNING = "var(--jp-warn-color1, #e09020)"
INFORMATION = "var(--jp-info-color1, #1e88e5)"
"""Colours of the border, which are to be seen on a light ground as on a dark one."""


class Area(Protocol):
    """Where the output of a cell appears."""

    def text(self, text: str) -> None:
        """Show what was printed."""

    def shown(self, event: Shown) -> None:
        """Show a rich display."""

    def notice(self, key: str, text: str, *, warns: bool = False) -> None:
        """Show a line of ours in the place of an earlier one with this key; '' takes that away."""

    def place(self, key: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show a display of ours in the place of an earlier one with this key."""


def show(shell: InteractiveShell, job: Job, interrupt: Callable[[], None] | None = None) -> None:
    """Show everything of a job as it comes and raise how it failed.

    Parameters
    ----------
    shell
        The notebook's.
    job
        It is viewed, and nobody else takes its events.
    interrupt
        What an interrupt does. By default it stops the job, and what that still has to say is
        shown; a second one hurries that.
    """
    area = RunningCell()
    live = LiveMetrics(job, area, metrics_how(shell))
    with _interrupts(interrupt or job.cancel):
        while (event := job.next_event(live.refresh)) is not None:
            pass_on(event, area)
        live.end()
    if job.error is not None:
        raise job.error


@contextmanager
def _interrupts(cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel` for each interrupt: an exception could come where another is being handled."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a subshell's thread, which no signal reaches
        return
    kept = signal.signal(signal.SIGINT, lambda *_: cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)


def pass_on(event: Text | Shown | Notice, area: Area) -> None:
    """Show one event of a job."""
    match event:
        case Text(text):
            area.text(text)
        case Notice(key, text, warns):
            area.notice(key, text, warns=warns)
        case Shown():
            area.shown(event)


class RunningCell:
    """The cell that runs now, reached the way its own code would."""

    def __init__(self) -> None:
        self._placed: dict[str, Any] = {}

    def text(self, text: str) -> None:
        """See `Area`."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def notice(self, key: str, text: str, *, warns: bool = False) -> None:
        """See `Area`."""
        self.place(key, bundle(text, warns=warns), {})

    def place(self, key: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """See `Area`."""
        if key in self._placed:
            self._placed[key].update(data, raw=True, metadata=metadata)
        else:
            self._placed[key] = display(data, raw=True, metadata=metadata, display_id=True)

    def shown(self, event: Shown) -> None:
        """See `Area`."""
        content = event.content
        if event.kind == "clear_output":
            clear_output(wait=content["wait"])
        elif event.kind == "execute_result":
            # At once and not as the magic's own value: a figure of the cell may follow it.
            sys.displayhook(RankValue(content["data"], content["metadata"]))
        else:
            display(
                content["data"],
                raw=True,
                metadata=content["metadata"],
                transient=content["transient"] or None,
                update=event.kind == "update_display_data",
                display_id=content["transient"].get("display_id"),
            )


class RankValue:
    """What the last expression of a cell was on the shown rank; it looks here as it did there."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._data, self._metadata = data, metadata

    def __repr__(self) -> str:
        return str(self._data.get("text/plain", ""))

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._data, self._metadata


def notice(text: str, *, warns: bool = False) -> Any:  # IPython's display handle
    """Show a line of ours, apart from the ranks' own output."""
    return display(bundle(text, warns=warns), raw=True, display_id=True)


def bundle(text: str, *, warns: bool = False) -> dict[str, str]:
    """Return a line of ours as front ends take it; without text it is nothing to be seen."""
    if not text:
        return {"text/plain": "", "text/html": ""}
    style = f"{NOTICE_STYLE} {WARNING if warns else INFORMATION}"
    return {"text/plain": text, "text/html": f'<div style="{style}">{as_html(text)}</div>'}
