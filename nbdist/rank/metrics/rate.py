"""Computes a loop's recent rate and remaining time, from the ends of complete steps.

A step may take a millisecond or ten minutes. So the rate is the mean of several complete steps,
however long they take. Between two ends of steps the rate stays the same, and the remaining time
counts down.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nbdist.rank.metrics.pace import Totals

SHORTEST_SECONDS = 6.0
"""A rate covers at least this time, or it would jump with each short step..."""
FEWEST_STEPS = 10
"""...and at least this many steps, of which some may take far longer than others."""
APART_SECONDS = 0.5
"""The least time between two ends of steps that are kept."""
STILL_SECONDS = 10.0
STILL_STEPS = 3
"""A loop that has not ended a step for both this time and this many usual steps stands still."""


class Rates(NamedTuple):
    """The rates of a loop; None where unknown."""

    rate: float | None = None
    """Iterations a second."""
    samples: float | None = None
    """Samples a second."""
    waited: float | None = None
    """The share of the time in which the loop waited for items."""

    @classmethod
    def between(cls, since: Totals, end: Totals) -> Rates:
        """Return the rates between the ends of two steps."""
        steps, seconds = end.steps - since.steps, end.seconds - since.seconds
        if steps <= 0 or seconds <= 0:
            return cls()
        waited = min(1.0, (end.waited - since.waited) / seconds)
        return cls(
            steps / seconds,
            None if math.isnan(end.samples) else (end.samples - since.samples) / seconds,
            waited if end.waited else None,
        )


class Ends:
    """The ends of steps from which a loop's rate is computed.

    The thread that runs the loop adds them; any thread can read `span`, a consistent pair.
    """

    def __init__(self, began: Totals) -> None:
        self.span = began, began
        """The first and last end of a step that the rate covers."""
        self._began = began
        self._kept = deque([began])

    def add(self, end: Totals) -> None:
        """Add a reading taken between two steps."""
        if end.steps <= self.span[1].steps:
            return  # no step has ended since the last reading
        kept = self._kept
        if kept[0] is self._began and len(kept) > 1:
            # Drop the first step, in which modules are imported, code is compiled, workers start.
            kept.popleft()
        while len(kept) > 1 and _enough(kept[1], end):
            kept.popleft()
        self.span = kept[0], end
        if kept[-1] is self._began or end.seconds - kept[-1].seconds >= APART_SECONDS:
            kept.append(end)

    def rates(self) -> Rates:
        """Return the recent rates. Any thread."""
        return Rates.between(*self.span)

    def left(self, now: float, done: int, total: int) -> float | None:
        """Return the remaining seconds of the loop. Any thread.

        If the running step is unusually long, at least the steps after it remain.
        """
        rate, last = self.rates().rate, self.span[1]
        if rate is None:
            return None
        planned = (total - last.steps) / rate - (now - last.seconds)
        return max(0.0, planned, (total - done - 1) / rate)

    def still(self, now: float) -> float | None:
        """Return for how long no step has ended, if this is unusually long. Any thread."""
        rate, since = self.rates().rate, now - self.span[1].seconds
        if rate is None or since <= max(STILL_SECONDS, STILL_STEPS / rate):
            return None
        return since


def _enough(since: Totals, end: Totals) -> bool:
    return (
        end.seconds - since.seconds >= SHORTEST_SECONDS and end.steps - since.steps >= FEWEST_STEPS
    )
