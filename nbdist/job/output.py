"""Carries a job's output from the ranks' logs to its viewers. Hub's thread."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from nbdist.job.bounded_output import TAIL, Screen
from nbdist.job.events import Notice, Shown
from nbdist.job.log_tail import Tail
from nbdist.job.merged_output import Merger

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.job.job import Job
    from nbdist.wire.messages import Display

OUTPUTS = ("rank0", "all", "collapse")
"""The values of `--output`."""
BACKLOG = 64
"""How many events the viewer may be behind before reading pauses; the logs stay on disk."""
LOOK = 64
"""The most chunks of each rank at one look, so that the hub can do other work."""
BARS_SECONDS = 0.25


class Output:
    """Reads the logs of the shown ranks, and forwards the text for which there is room."""

    def __init__(self, job: Job, how: str) -> None:
        self._job = job
        self._ranks = job.ranks[:1] if how == "rank0" else job.ranks
        self._screen = Screen(job.events.put, self._ranks[0])
        self._merger = None if how == "rank0" else Merger(self._ranks, collapse=how == "collapse")
        self._tails: dict[int, Tail] = {}
        self._sizes: dict[int, int | None] = dict.fromkeys(self._ranks, 0)
        """The size of each log at the last look."""
        self._displays: deque[Display] = deque()
        self._last = dict.fromkeys(self._ranks, "")
        self._bars, self._bars_at = "", 0.0

    def begin(self) -> None:
        """Start at the job's part of each log."""
        self._tails = {
            rank: Tail(self._job.log(rank), self._job.parts[rank][0]) for rank in self._ranks
        }

    def quiet(self) -> None:
        """Leave out torch's messages about connections that we cut from now on."""
        for tail in self._tails.values():
            tail.quiet = True

    def display(self, display: Display) -> None:
        """Show a display after the part of the log before it."""
        self._displays.append(display)

    def look(self) -> bool:
        """Forward text up to the sizes at the last look.

        Displays arrive on a slower way than text; by now the displays before this text have come.
        """
        all_read = self._read_all(self._sizes)
        self._sizes = {rank: tail.size() for rank, tail in self._tails.items()}
        grown = any(tail.at < (self._sizes[rank] or 0) for rank, tail in self._tails.items())
        return grown or not all_read or self._waiting()

    def _waiting(self) -> bool:
        """Whether lines wait for other ranks, or a bar must be redrawn."""
        merger = self._merger
        return merger is not None and (merger.waits or merger.bars() != self._bars)

    def logs(self) -> list[Path]:
        """See `nbdist.hub.running.watch.Output`."""
        return [self._job.log(rank) for rank in self._ranks]

    def finish(self) -> bool:
        """Forward all output to the job's end; return False if the viewer is too slow for it."""
        if not self._read_all({rank: self._job.parts[rank][1] for rank in self._ranks}):
            return False
        for rank, tail in self._tails.items():
            self._text(rank, tail.close())
        self._end()
        return True

    def _read_all(self, ends: dict[int, int | None]) -> bool:
        """Read the logs in turn, a chunk each; return False if there is too much to forward."""
        open_ = dict(self._tails)
        for _ in range(LOOK):
            for rank, tail in list(open_.items()):
                if self._job.events.qsize() >= BACKLOG:
                    return False
                if not self._read(rank, tail, ends.get(rank)):
                    del open_[rank]
            self._settle()
            if not open_:
                return not self._displays
        return False

    def _read(self, rank: int, tail: Tail, end: int | None) -> bool:
        """Read a chunk of one rank's log; return False if there is none."""
        self._show_displays(rank, tail.at)
        if self._displays and rank == self._ranks[0]:
            end = self._displays[0].offset
        text = tail.read(end)
        if text is not None:
            self._text(rank, text)
        return text is not None

    def _show_displays(self, rank: int, at: int) -> None:
        while self._displays and rank == self._ranks[0] and self._displays[0].offset <= at:
            display = self._displays.popleft()
            self._settle(final=True)
            self._screen.show(Shown(display.kind, display.content))

    def _text(self, rank: int, text: str) -> None:
        if self._merger is None:
            self._screen.text(text)
        elif self._screen.full:
            # The text is not shown: only count it, and keep the end of each rank's.
            self._screen.hide(text)
            self._last[rank] = (self._last[rank] + text)[-TAIL // len(self._ranks) :]
        else:
            self._merger.feed(rank, text, time.monotonic())

    def _settle(self, *, final: bool = False) -> None:
        """Show merged lines that are ready, and update progress bars and counts."""
        now = time.monotonic()
        if self._merger is not None:
            self._screen.text(self._merger.ready(now, final=final))
            if self._screen.full:
                self._screen.latest("".join(self._last.values()))
            bars = self._merger.bars(now)
            if bars != self._bars and now - self._bars_at > BARS_SECONDS:
                self._bars, self._bars_at = bars, now
                self._job.events.put(Notice("bars", bars))
        self._screen.refresh(now)

    def _end(self) -> None:
        if self._merger is not None:
            now = time.monotonic()
            if any(self._last.values()):
                self._merger.flush(now)
                for rank, text in self._last.items():
                    self._merger.feed(rank, text.partition("\n")[2], now)
                self._screen.latest(self._merger.flush(now))
            elif self._bars:
                self._screen.text(self._merger.ready(now, final=True))
                self._job.events.put(Notice("bars", self._merger.bars()))
            else:
                self._screen.text(self._merger.flush(now))
        self._screen.end()
