"""What the page gets: everything it shows and lets a person do, in one run of bytes.

``uint32 n | n bytes of JSON | float64 numbers | float32 numbers``, little-endian; the JSON is
padded so that the numbers are aligned. Numbers follow each other in the order in which the JSON
names what has any: of each curve its steps and times, then those of its ranks, among the float64;
its mean, low and high, then its ranks' values, among the float32.

A whole frame holds all there is, so a view that opens late needs nothing else. A later frame for
the same page holds only what is new: of a curve without news nothing but its name, of any other one
the points from the first that differs from what the page has. Resources are null where they have no
news, which is most of the time: they are told less often than metrics, and to the rest of the page
they do not matter.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbdist.metrics.curves import Curve, Line
    from nbdist.view.job_view import Seen
    from nbdist.view.panels import Panel

    Key = tuple[str, str]  # kind and name
    Numbers = NDArray[np.float64] | NDArray[np.float32]

VERSION = 2
HEAD_BYTES = 4
MOST_NUMBERS = 24_000
"""Numbers of single ranks' curves that a state has room for; with more they are thinned."""
FEWEST = 24
"""Points of a rank's curve that are always sent."""
SAME_TIME_SECONDS = 1.0
"""A rank whose times are closer than this to those of its curve is sent without its own."""
METRICS, RESOURCES = "metrics", "resources"
MOST_APART = 64
"""With more ranks the page gets the mean and the range of resources alone."""
RANKS_A_SECOND = 8
"""Resources of so many are told in a second: of 64 ranks every 8 s."""
NO_LIMIT = 1 << 30


def packed(seen: Seen) -> bytes:
    """Return the whole state of a view."""
    return Frames().frame(seen)


class _Rank(NamedTuple):
    """The curve of one rank; without steps or times of its own it has those of its metric."""

    values: NDArray[np.float32]
    steps: NDArray[np.float64] | None
    times: NDArray[np.float64] | None

    @property
    def arrays(self) -> tuple[Numbers, ...]:
        return tuple(array for array in self if array is not None)


class _Sent(NamedTuple):
    """What a page has of a curve."""

    changes: int
    room: int
    facts: dict[str, Any]
    line: tuple[Numbers, ...]
    """Steps, times, mean, low, high."""
    each: dict[int, _Rank]


class Frames:
    """Makes the frames for one page, which has to take all of them in their order."""

    def __init__(self) -> None:
        self._sent: dict[Key, _Sent] = {}
        self._begun = False
        self._due = 0.0
        """When resources are told next."""

    def frame(self, seen: Seen) -> bytes:
        """Return what the page does not have yet; the first frame is a whole one."""
        lines = sum(len(curve.ranks) for panel in seen.panels for _, curve in panel.curves)
        news = _News(self._sent)
        header = {
            "version": VERSION,
            "whole": not self._begun,
            "folder": seen.folder,
            "job": seen.job,
            "title": seen.title,
            "state": seen.state,
            "seconds": seen.seconds,
            "began": seen.began,
            "bars": [row._asdict() for row in seen.bars],
            "straggler": seen.straggler,
            "ranks": [row._asdict() for row in seen.ranks],
            "panels": news.panels(METRICS, seen.panels, max(FEWEST, MOST_NUMBERS // max(lines, 1))),
            "resources": self._resources(seen, news),
            "note": seen.note,
        }
        header["floats"] = sum(map(len, news.doubles))
        self._sent, self._begun = news.sent, True
        text = msgspec.json.encode(header)
        text += b" " * (-(HEAD_BYTES + len(text)) % 8)
        numbers = [array.tobytes() for array in (*news.doubles, *news.singles)]
        return b"".join([len(text).to_bytes(HEAD_BYTES, "little"), text, *numbers])

    def _resources(self, seen: Seen, news: _News) -> list[dict[str, Any]] | None:
        now = time.monotonic()
        if self._begun and seen.state == "running" and now < self._due:
            news.keep(RESOURCES)
            return None
        self._due = now + max(1.0, len(seen.ranks) / RANKS_A_SECOND)
        return news.panels(
            RESOURCES, seen.resources, NO_LIMIT if len(seen.ranks) <= MOST_APART else 0
        )


class _News:
    """Collects what a page lacks.

    Parameters
    ----------
    before
        What it has.
    """

    def __init__(self, before: dict[Key, _Sent]) -> None:
        self._before = before
        self.sent: dict[Key, _Sent] = {}
        self.doubles: list[Numbers] = []
        self.singles: list[Numbers] = []

    def keep(self, kind: str) -> None:
        """Say nothing of curves of a kind: the page has them."""
        self.sent |= {key: sent for key, sent in self._before.items() if key[0] == kind}

    def panels(self, kind: str, panels: Sequence[Panel], room: int) -> list[dict[str, Any]]:
        """Put in what is new in panels, and return what the page must know of them.

        Parameters
        ----------
        kind
            `METRICS` or `RESOURCES`, which may have the same names.
        panels
            As they are now.
        room
            Points that a rank's curve may have; with 0 ranks have none.
        """
        return [
            {
                "title": panel.title,
                "curves": [
                    {
                        "name": curve.name,
                        "label": label,
                        **self._of(kind, curve, room),
                    }
                    for label, curve in panel.curves
                ],
            }
            for panel in panels
        ]

    def _of(self, kind: str, curve: Curve, room: int) -> dict[str, Any]:
        key = kind, curve.name
        before = self._before.get(key)
        if before is not None and (before.changes, before.room) == (curve.changes, room):
            self.sent[key] = before
            return {}
        now = self.sent[key] = _sent(curve, room)
        begin = 0 if before is None else _first_change(before.line, now.line)
        self.doubles += [array[begin:] for array in now.line[:2]]
        self.singles += [array[begin:] for array in now.line[2:]]
        each = [
            self._rank(number, rank, None if before is None else before.each.get(number))
            for number, rank in now.each.items()
        ]
        return {**now.facts, "from": begin, "count": len(now.line[0]) - begin, "each": each}

    def _rank(self, number: int, now: _Rank, before: _Rank | None) -> dict[str, Any]:
        begin = 0
        own = now.steps is not None, now.times is not None
        if before is not None and own == (before.steps is not None, before.times is not None):
            begin = _first_change(before.arrays, now.arrays)
        self.singles.append(now.values[begin:])
        self.doubles += [array[begin:] for array in now[1:] if array is not None]
        return {
            "rank": number, "from": begin, "count": len(now.values) - begin, "x": own[0],
            "time": own[1],
        }  # fmt: skip


def _sent(curve: Curve, room: int) -> _Sent:
    """Return a curve as the page will have it."""
    line = curve.line
    facts: dict[str, Any] = {
        "stride": curve.stride,
        "points": curve.points,
        "marks": [list(mark) for mark in curve.marks],
        "last": _number(curve.latest),
        "best": list(curve.range),
    }
    each = {}
    if room and len(curve.ranks) > 1:
        chosen = _thinned(len(line.steps), room)
        each = {rank: _rank_of(curve, line, rank, chosen) for rank in curve.ranks}
    arrays = (
        line.steps.astype("<f8"), line.times.astype("<f8"),
        _single(line.mean), _single(line.low), _single(line.high),
    )  # fmt: skip
    return _Sent(curve.changes, room, facts, arrays, each)


def _rank_of(curve: Curve, line: Line, rank: int, chosen: NDArray[np.int64] | None) -> _Rank:
    values, times, known = curve.of(rank), curve.times_of(rank), line.times
    steps = None
    if chosen is not None:
        steps, values = line.steps[chosen].astype("<f8"), values[chosen]
        times, known = times[chosen], known[chosen]
    with np.errstate(invalid="ignore"):
        apart = steps is not None or bool((np.abs(times - known) > SAME_TIME_SECONDS).any())
    return _Rank(_single(values), steps, times.astype("<f8") if apart else None)


def _thinned(length: int, room: int) -> NDArray[np.int64] | None:
    """Return which points of a rank's curve are sent, None for all.

    Points that were chosen stay chosen as the curve grows, until it has to be thinned further; the
    last one is always there, because that is where a person looks.
    """
    if length <= room:
        return None
    every = 2 ** math.ceil(math.log2(length / room))
    chosen = np.arange(0, length, every)
    return chosen if chosen[-1] == length - 1 else np.append(chosen, length - 1)


def _first_change(before: Sequence[Numbers], now: Sequence[Numbers]) -> int:
    """Return the first place where any of several arrays is not what it was."""
    length = min(len(before[0]), len(now[0]))
    differs = np.zeros(length, np.bool_)
    for old, new in zip(before, now, strict=True):
        # By their bits: NaN is the same as NaN.
        bits = np.int64 if new.itemsize == 8 else np.int32  # noqa: PLR2004  # bytes
        differs |= old[:length].view(bits) != new[:length].view(bits)
    return int(differs.argmax()) if differs.any() else length


def _single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype("<f4")


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
