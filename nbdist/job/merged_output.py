"""Merges the output of several ranks: each line with its rank, or equal lines once."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass

from nbdist.job.named_ranks import show_ranks

MOVES = re.compile(r"(\n|\r(?!\n)|\x1b\[A)")
BAR_ROWS = 4
"""How many rows a program that moves the cursor up may still change."""
WINDOW = 200
"""How many lines are searched for an equal line of another rank."""
MOST_LINES = 10_000
"""The most lines that wait for other ranks."""
OPEN_SECONDS = 0.1
"""A line that is unfinished after this time is a progress bar or similar."""
LATE_SECONDS = 1.0
"""How long a line waits until the other ranks print it, too."""


class Rows:
    """A minimal terminal that follows one rank's progress bars, nested ones included."""

    def __init__(self) -> None:
        self._rows = [""]
        self._row = self._column = 0
        self._moves_up = False

    def feed(self, text: str) -> list[str]:
        """Process output; return the lines that are final."""
        plain = not self._moves_up and self._column == len(self._rows[-1])
        if plain and "\r" not in text and "\x1b[A" not in text:
            lines = (self._rows[-1] + text).split("\n")
            self._rows = [lines.pop()]
            self._row, self._column = 0, len(self._rows[0])
            return lines
        for part in MOVES.split(text):
            self._take(part)
        keep = BAR_ROWS if self._moves_up else 1
        done = max(0, min(len(self._rows) - keep, self._row))
        lines, self._rows = self._rows[:done], self._rows[done:]
        self._row -= done
        return [line.rstrip() for line in lines]

    def _take(self, part: str) -> None:
        if part == "\n":
            self._row, self._column = self._row + 1, 0
            if self._row == len(self._rows):
                self._rows.append("")
        elif part == "\r":
            self._column = 0
        elif part == "\x1b[A":
            self._row, self._moves_up = max(0, self._row - 1), True
        elif part:
            row = self._rows[self._row].ljust(self._column)
            end = self._column + len(part)
            self._rows[self._row] = row[: self._column] + part + row[end:]
            self._column = end

    def open(self) -> str:
        """Return the unfinished lines; '' without any."""
        return "\n".join(row.rstrip() for row in self._rows if row.strip())

    def rest(self) -> list[str]:
        """Return all unfinished lines and forget them."""
        rows = self.open().splitlines()
        self._rows, self._row, self._column = [""], 0, 0
        return rows


@dataclass
class _Line:
    text: str
    ranks: set[int]
    born: float


class Merger:
    """Merges the ranks' output into labelled lines."""

    def __init__(self, ranks: tuple[int, ...], *, collapse: bool) -> None:
        self._all = set(ranks)
        self._collapse = collapse
        self._rows = {rank: Rows() for rank in ranks}
        self._lines: deque[_Line] = deque()
        self._gone = 0  # the number of shown lines, which positions below include
        self._next = dict.fromkeys(ranks, 0)
        self._open_at: dict[int, float] = {}
        """For each rank, when its unfinished line began."""

    def feed(self, rank: int, text: str, now: float) -> None:
        """Process a rank's output at this time in seconds."""
        was_open = bool(self._rows[rank].open())
        lines = self._rows[rank].feed(text)
        if lines or not was_open:  # the open line has begun now
            self._open_at[rank] = now
        self._add(rank, lines, now)

    def _add(self, rank: int, lines: list[str], now: float) -> None:
        for text in lines:
            place = self._find(rank, text) if self._collapse else None
            if place is None:
                place = self._insert(rank, _Line(text, {rank}, now))
            else:
                self._lines[place - self._gone].ranks.add(rank)
            self._next[rank] = place + 1

    def _insert(self, rank: int, line: _Line) -> int:
        """Insert a line at the rank's position, before lines that wait for this rank."""
        place = max(self._next[rank], self._gone) if self._collapse else self._end()
        self._lines.insert(place - self._gone, line)
        for other, position in self._next.items():
            if position > place:
                self._next[other] = position + 1
        return place

    def _end(self) -> int:
        return self._gone + len(self._lines)

    def _find(self, rank: int, text: str) -> int | None:
        """Return the position of an equal line that waits for this rank, after its last line."""
        first = max(self._next[rank], self._gone)
        for place in range(first, min(first + WINDOW, self._end())):
            line = self._lines[place - self._gone]
            if line.text == text and rank not in line.ranks:
                return place
        return self._move_down(rank, text)

    def _move_down(self, rank: int, text: str) -> int | None:
        """Move an equal line, which other ranks printed before, down to this rank's position.

        The lines of a rank that is read later are put before those of the first rank. The order of
        reading must not decide whether a line counts as common.
        """
        here = self._next[rank]
        between: set[int] = set()  # the ranks whose lines it passes
        for place in range(here - 1, max(here - WINDOW, self._gone) - 1, -1):
            line = self._lines[place - self._gone]
            if line.text == text and rank not in line.ranks and not between & line.ranks:
                self._move(place, here - 1)
                return here - 1
            between |= line.ranks
        return None

    def _move(self, place: int, to: int) -> None:
        line = self._lines[place - self._gone]
        del self._lines[place - self._gone]
        self._lines.insert(to - self._gone, line)
        for other, position in self._next.items():
            if place < position <= to + 1:
                self._next[other] = to + 1 if other in line.ranks else position - 1

    @property
    def waits(self) -> bool:
        """Whether some lines wait for other ranks."""
        return bool(self._lines)

    def ready(self, now: float, *, final: bool = False) -> str:
        """Return the lines that no longer wait for a rank."""
        shown = []
        while self._lines:
            line = self._lines[0]
            waits = self._collapse and line.ranks != self._all and now - line.born < LATE_SECONDS
            if waits and not final and len(self._lines) < MOST_LINES:
                break
            self._lines.popleft()
            self._gone += 1
            shown.append(f"[{show_ranks(list(line.ranks))}] {line.text}\n")
        return "".join(shown)

    def bars(self, now: float = math.inf) -> str:
        """Return each rank's unfinished lines, such as progress bars.

        Lines that began just before `now` are left out, because their end usually follows: Python
        writes a line and its end separately.
        """
        open_ = {
            rank: rows.open().splitlines()
            for rank, rows in self._rows.items()
            if now - self._open_at.get(rank, now) >= OPEN_SECONDS
        }
        return "\n".join(f"[{rank}] {row}" for rank, rows in open_.items() for row in rows)

    def flush(self, now: float) -> str:
        """Return all remaining lines, unfinished ones included."""
        for rank, rows in self._rows.items():
            self._add(rank, rows.rest(), now)
        return self.ready(now, final=True)
