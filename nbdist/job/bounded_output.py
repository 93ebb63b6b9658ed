"""The part of a job's output that the notebook shows: its beginning and its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbdist.job.events import Event, Notice, Shown, Text
from nbdist.machine.amounts import counted, in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = 200_000
"""How many visible characters are shown at the beginning."""
TAIL_LINES = 40
TAIL = 10_000
"""The most characters of the last lines, shown at the end."""
LATEST_LINES = 3
DISPLAYS = 200
"""The most rich displays of a cell that are shown."""
REFRESH_SECONDS = 0.5

_OVERWRITTEN = re.compile(r"[^\n\r]*\r(?!\n)")


class Screen:
    """Forwards the output for which there is room, and says what is left out. Hub's thread."""

    def __init__(self, put: Callable[[Event], None], rank: int) -> None:
        self._put, self._rank = put, rank
        self._room, self._displays = HEAD, DISPLAYS
        self._hidden = self._hidden_lines = 0
        self._latest = ""
        self._refreshed = 0.0

    @property
    def full(self) -> bool:
        """Whether text is only counted now."""
        return self._room <= 0

    def text(self, text: str) -> None:
        """Show text while there is room."""
        if self.full:
            self.hide(text)
            self._latest = (self._latest + text)[-TAIL:]
        elif text:
            self._room -= len(_OVERWRITTEN.sub("", text) if "\r" in text else text)
            self._put(Text(text))

    def hide(self, text: str) -> None:
        """Count text that is not shown."""
        self._hidden += len(text)
        self._hidden_lines += text.count("\n")

    def latest(self, text: str) -> None:
        """Set the part of hidden text to show."""
        self._latest = text[-TAIL:]

    def show(self, shown: Shown) -> None:
        """Show a rich display while there is room."""
        if shown.kind == "clear_output":
            self._room, self._displays = HEAD, DISPLAYS
            self._hidden = self._hidden_lines = 0
            self._latest = ""
        elif shown.kind != "update_display_data":
            self._displays -= 1
            if self._displays == -1:
                more = f"More than {DISPLAYS} displays came of this cell; the rest is not shown."
                self._put(Notice("displays", more))
        if self._displays >= 0:
            self._put(shown)

    def refresh(self, now: float) -> None:
        """Update the message about hidden text."""
        if self._hidden and now - self._refreshed > REFRESH_SECONDS:
            self._refreshed = now
            latest = "\n".join(self._latest.splitlines()[-LATEST_LINES:])
            self._put(Notice("more", f"… {self._amount()} more so far, the latest:\n{latest}"))

    def end(self) -> None:
        """Say how much is not shown, and show its last lines."""
        if not self._hidden:
            return
        tail = "".join(self._latest.splitlines(keepends=True)[-TAIL_LINES:])
        hidden = self._hidden - len(tail)
        if hidden > 0:
            where = f"`%dist logs {self._rank}` prints all, with --tail N or --grep WORD a part."
            self._put(Notice("more", f"… {self._amount()} hidden; {where}"))
        self._put(Text(tail))

    def _amount(self) -> str:
        return f"{counted(self._hidden_lines, 'line')} ({in_bytes(self._hidden)})"
