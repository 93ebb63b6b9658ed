"""What the page gets: everything it shows and lets a person do, in one run of bytes.

``uint32 n | n bytes of JSON | float64 numbers | float32 numbers``, little-endian; the JSON is
padded so that the numbers are aligned, and names the places of arrays in them. A view that opens
late, or opens again, needs nothing else; no button asks the kernel, which is busy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbdist.metrics.curves import Curve
    from nbdist.widgets.seen import Seen

VERSION = 1
HEAD_BYTES = 4
MOST_NUMBERS = 24_000
"""Numbers of single ranks' curves that a state has room for; with more they are thinned."""
FEWEST = 24
"""Points of a rank's curve that are always sent."""


def packed(seen: Seen) -> bytes:
    """Return the state of a view."""
    page = _Page(sum(len(curve.ranks) for panel in seen.panels for _, curve in panel.curves))
    header = {
        "version": VERSION,
        "title": seen.title,
        "state": seen.state,
        "seconds": seen.seconds,
        "bars": [row._asdict() for row in seen.bars],
        "straggler": seen.straggler,
        "ranks": [row._asdict() for row in seen.ranks],
        "panels": [
            {
                "title": panel.title,
                "curves": [page.curve(label, curve) for label, curve in panel.curves],
            }
            for panel in seen.panels
        ],
        "note": seen.note,
    }
    header["floats"] = page.size64
    text = msgspec.json.encode(header)
    text += b" " * (-(HEAD_BYTES + len(text)) % 8)
    return len(text).to_bytes(HEAD_BYTES, "little") + text + page.numbers()


class _Page:
    """Collects arrays, and tells where they will be."""

    def __init__(self, lines: int) -> None:
        self._room = max(FEWEST, MOST_NUMBERS // max(lines, 1))
        self._of64: list[NDArray[np.float64]] = []
        self._of32: list[NDArray[np.float32]] = []
        self.size64 = self._size32 = 0

    def _put64(self, values: NDArray[np.float64]) -> int:
        at = self.size64
        self._of64.append(values.astype("<f8"))
        self.size64 += len(values)
        return at

    def _put32(self, values: NDArray[np.float64]) -> int:
        at = self._size32
        with np.errstate(over="ignore"):
            self._of32.append(values.astype("<f4"))
        self._size32 += len(values)
        return at

    def numbers(self) -> bytes:
        """Return all of them."""
        of64, of32 = ([array.tobytes() for array in each] for each in (self._of64, self._of32))
        return b"".join(of64 + of32)

    def curve(self, label: str, curve: Curve) -> dict[str, Any]:
        """Put a curve in, and return what the page must know of it."""
        line = curve.line
        told: dict[str, Any] = {
            "name": curve.name,
            "label": label,
            "count": len(line.steps),
            "stride": curve.stride,
            "points": curve.points,
            "x": self._put64(line.steps),
            "mean": self._put32(line.mean),
            "low": self._put32(line.low),
            "high": self._put32(line.high),
            "each": [],
            "marks": [list(mark) for mark in curve.marks],
            "last": _number(curve.latest),
            "best": list(curve.range),
        }
        if len(curve.ranks) > 1:
            told["each"] = self._each(curve, line.steps)
        return told

    def _each(self, curve: Curve, steps: NDArray[np.float64]) -> list[dict[str, Any]]:
        """Put in one curve a rank, on fewer steps where there are too many."""
        every = math.ceil(len(steps) / self._room)
        # The last one is always there: that is where a person looks.
        chosen = np.arange(len(steps) - 1, -1, -every)[::-1]
        place = {}
        if every > 1:
            place = {"count": len(chosen), "x": self._put64(steps[chosen])}
        return [
            {"rank": rank, "values": self._put32(curve.of(rank)[chosen]), **place}
            for rank in curve.ranks
        ]


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
