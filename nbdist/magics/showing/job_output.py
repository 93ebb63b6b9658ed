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
"""The text colour of JupyterLab's or VS Code's theme; VS Code does not set it on our text."""
NOTICE_STYLE = (
    f"color:{THEME};padding:2px 8px;margin:2px 0;white-space:pre-wrap;border-left:3px solid"
)
WARNING = "var(--jp-warn-color1, #e09020)"
INFORMATION = "var(--jp-info-color1, #1e88e5)"
"""Colours of the border, visible on light and dark backgrounds."""


class Area(Protocol):
    """The output area of a cell."""

    def text(self, text: str) -> None:
        """Show printed text."""

    def shown(self, event: Shown) -> None:
        """Show a rich display."""

    def notice(self, key: str, text: str, *, warns: bool = False) -> None:
        """Show a notice in place of an earlier one with this key; '' removes the earlier one."""

    def place(self, key: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show a display of nbdist in place of an earlier one with this key."""


def show(shell: InteractiveShell, job: Job, interrupt: Callable[[], None] | None = None) -> None:
    """Show all output of a job as it arrives, and raise its error.

    Parameters
    ----------
    shell
        The notebook's shell.
    job
        A job with `viewed` set, whose events nothing else takes.
    interrupt
        Called at an interrupt. By default an interrupt stops the job, whose remaining output is
        shown; a second interrupt speeds this up.
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
    """Call `cancel` for each interrupt: an exception could disturb the handling of another."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a subshell's thread, which gets no signals
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
    """The running cell, whose output is shown in the way of the cell's own code."""

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
            # At once, not as the magic's own value: a figure of the cell may follow the value.
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
    """The value of a cell's last expression on the shown rank, displayed as the rank shows it."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._data, self._metadata = data, metadata

    def __repr__(self) -> str:
        return str(self._data.get("text/plain", ""))

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._data, self._metadata


def notice(text: str, *, warns: bool = False) -> Any:  # IPython's display handle
    """Show a notice of nbdist, set apart from the ranks' own output."""
    return display(bundle(text, warns=warns), raw=True, display_id=True)


def bundle(text: str, *, warns: bool = False) -> dict[str, str]:
    """Return a notice as a MIME bundle; an empty text shows nothing."""
    if not text:
        return {"text/plain": "", "text/html": ""}
    style = f"{NOTICE_STYLE} {WARNING if warns else INFORMATION}"
    return {"text/plain": text, "text/html": f'<div style="{style}">{as_html(text)}</div>'}
