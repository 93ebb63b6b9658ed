"""Encodes a job's view for the page as binary frames: a complete one, then only changes.

A frame is ``uint32 n | n bytes of JSON | float64 numbers | float32 numbers``, little-endian; the
JSON is padded so that the numbers are aligned. The numbers are in the order of the curves in the
JSON. The float64 numbers are, for each curve, its steps and times, then those of its ranks. The
float32 numbers are, for each curve, its mean, low and high, then the values of its ranks.

A whole frame contains everything, so a view that opens late needs nothing else. A later frame for
the same page contains only changes: for an unchanged curve only its name, for any other curve the
points from the first one that differs from what the page has. Resources are null if there is no
change to send, which is most of the time, because they are sent less often than metrics.
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

    from nbdist.metrics.thinned_curves import Curve, Line
    from nbdist.view.job_view import Seen
    from nbdist.view.panels import Panel

    Key = tuple[str, str]  # kind and name
    Numbers = NDArray[np.float64] | NDArray[np.float32]

VERSION = 2
HEAD_BYTES = 4
MOST_NUMBERS = 24_000
"""The most numbers in single ranks' curves of a frame; more points are thinned."""
FEWEST = 24
"""The least number of points of a rank's curve after thinning."""
SAME_TIME_SECONDS = 1.0
"""A rank whose times differ by less from those of its curve is sent without its own times."""
METRICS, RESOURCES = "metrics", "resources"
MOST_APART = 64
"""With more ranks than this, the page gets only the mean and the range of resources."""
RANKS_A_SECOND = 8
"""How many ranks' resources are sent in a second: those of 64 ranks every 8 s."""
NO_LIMIT = 1 << 30


def packed(seen: Seen) -> bytes:
    """Return a view as one whole frame."""
    return Frames().frame(seen)


class _Rank(NamedTuple):
    """The curve of one rank; steps and times are None if equal to those of its metric."""

    values: NDArray[np.float32]
    steps: NDArray[np.float64] | None
    times: NDArray[np.float64] | None

    @property
    def arrays(self) -> tuple[Numbers, ...]:
        return tuple(array for array in self if array is not None)


class _Sent(NamedTuple):
    """The state of a curve on a page."""

    changes: int
    room: int
    facts: dict[str, Any]
    line: tuple[Numbers, ...]
    """Steps, times, mean, low, high."""
    each: dict[int, _Rank]


class Frames:
    """Makes the frames for one page, which must process all of them in order."""

    def __init__(self) -> None:
        self._sent: dict[Key, _Sent] = {}
        self._begun = False
        self._due = 0.0
        """When resources are sent next."""

    def frame(self, seen: Seen) -> bytes:
        """Return the changes since the last frame; the first frame is a whole one."""
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
    """Collects the changes for a page.

    Parameters
    ----------
    before
        The curves as the page has them.
    """

    def __init__(self, before: dict[Key, _Sent]) -> None:
        self._before = before
        self.sent: dict[Key, _Sent] = {}
        self.doubles: list[Numbers] = []
        self.singles: list[Numbers] = []

    def keep(self, kind: str) -> None:
        """Send nothing about the curves of a kind, which stay as the page has them."""
        self.sent |= {key: sent for key, sent in self._before.items() if key[0] == kind}

    def panels(self, kind: str, panels: Sequence[Panel], room: int) -> list[dict[str, Any]]:
        """Collect the changes of panels; return their description for the JSON.

        Parameters
        ----------
        kind
            `METRICS` or `RESOURCES`, whose names may be equal.
        panels
            The present panels.
        room
            The most points of a rank's curve; 0 sends no curves of ranks.
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
    """Return a curve in the form in which it is sent."""
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
    """Return the indices of the points of a rank's curve to send, None for all.

    A chosen point stays chosen while the curve grows, until the curve must be thinned further. The
    last point is always sent, because it is the most interesting one.
    """
    if length <= room:
        return None
    every = 2 ** math.ceil(math.log2(length / room))
    chosen = np.arange(0, length, every)
    return chosen if chosen[-1] == length - 1 else np.append(chosen, length - 1)


def _first_change(before: Sequence[Numbers], now: Sequence[Numbers]) -> int:
    """Return the first index at which any of several arrays has changed."""
    length = min(len(before[0]), len(now[0]))
    differs = np.zeros(length, np.bool_)
    for old, new in zip(before, now, strict=True):
        # Compare bits: NaN equals NaN.
        bits = np.int64 if new.itemsize == 8 else np.int32  # noqa: PLR2004  # bytes
        differs |= old[:length].view(bits) != new[:length].view(bits)
    return int(differs.argmax()) if differs.any() else length


def _single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype("<f4")


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
