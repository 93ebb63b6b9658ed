"""Tells which values of a job stand after its ranks have begun again, perhaps fewer than before.

From its first step on, a new try replaces the values of all tries before, also those of ranks that
are gone. What was logged before that step stays: the new try goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbdist.metrics.points_file import Column


class Tries:
    """The first step that each try of a job has logged of each name."""

    def __init__(self) -> None:
        self._first: dict[str, dict[int, int]] = {}

    def note(self, start: int, column: Column) -> int | None:
        """Take note of what a rank has logged; return the step if a try has replaced more by it."""
        firsts = self._first.setdefault(column.name, {})
        if start in firsts:
            return None
        firsts[start] = int(np.frombuffer(column.steps, np.int64, 1)[0])
        return firsts[start] if start == max(firsts) and len(firsts) > 1 else None

    def stands(self, start: int, column: Column) -> NDArray[np.bool_] | None:
        """Return which values of a column stand; None for all of them."""
        firsts = self._first.get(column.name, {})
        later = [step for other, step in firsts.items() if other > start]
        return np.frombuffer(column.steps, np.int64) < min(later) if later else None

    def last(self, name: str) -> int:
        """Return the last try that has logged a name."""
        return max(self._first.get(name, (0,)))


def kept(column: Column, stands: NDArray[np.bool_] | None) -> tuple[bytes, bytes, bytes]:
    """Return the steps, times and values of a column that stand."""
    parts = column.steps, column.times, column.values
    if stands is None:
        return parts
    steps, times, values = (np.frombuffer(part, "V8")[stands].tobytes() for part in parts)
    return steps, times, values
