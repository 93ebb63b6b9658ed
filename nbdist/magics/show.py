"""A job's output in the cell that started it, in any front end. Kernel's main thread."""

from __future__ import annotations

import html
import sys
from typing import Any

from IPython.display import clear_output, display

from nbdist.hub.jobs import Job, Notice, Shown, Text

NOTICE_STYLE = "border-left:3px solid #e09020;padding:2px 8px;margin:2px 0;white-space:pre-wrap"


def show(job: Job) -> None:
    """Show everything of a job as it comes and raise how it failed.

    An interrupt stops the job, and what it still has to say is shown; a second one hurries that.
    """
    notices: dict[str, Any] = {}
    while True:
        try:
            event = job.events.get()
            if event is None:
                break
            _show(event, notices)
        except KeyboardInterrupt:
            job.interrupt()
    if job.error is not None:
        raise job.error


def _show(event: Text | Shown | Notice, notices: dict[str, Any]) -> None:
    if isinstance(event, Text):
        sys.stdout.write(event.text)
        sys.stdout.flush()
    elif isinstance(event, Notice):
        if event.key in notices:
            notices[event.key].update(_bundle(event.text), raw=True)
        else:
            notices[event.key] = notice(event.text)
    elif event.kind == "clear_output":
        clear_output(wait=event.content["wait"])
    elif event.kind == "execute_result":
        # At once and not as the magic's own value: a figure of the cell may follow it.
        sys.displayhook(RankValue(event.content["data"], event.content["metadata"]))
    else:
        _display(event)


class RankValue:
    """What the last expression of a cell was on the shown rank; it looks here as it did there."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._data, self._metadata = data, metadata

    def __repr__(self) -> str:
        return str(self._data.get("text/plain", ""))

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._data, self._metadata


def _display(event: Shown) -> None:
    content = event.content
    display(
        content["data"],
        raw=True,
        metadata=content["metadata"],
        transient=content["transient"] or None,
        update=event.kind == "update_display_data",
        display_id=content["transient"].get("display_id"),
    )


def notice(text: str) -> Any:  # IPython's display handle
    """Show a line of ours, apart from the ranks' own output."""
    return display(_bundle(text), raw=True, display_id=True)


def _bundle(text: str) -> dict[str, str]:
    return {
        "text/plain": text,
        "text/html": f'<div style="{NOTICE_STYLE}">{html.escape(text)}</div>',
    }
