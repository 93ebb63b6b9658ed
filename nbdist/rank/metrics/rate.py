"""How fast a loop goes of late, told from ends of its steps and never from a part of one.

A step may take a millisecond or ten minutes. So the rate is made over whole steps, several of them
however long they take: between two ends nothing is known of it and it stays as it is, while the
time that is left counts down.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nbdist.rank.metrics.pace import Totals

SHORTEST_SECONDS = 6.0
"""Over at least so long a rate is made, or it would jump with each short step..."""
FEWEST_STEPS = 10
"""...and over at least so many steps, of which some may take far longer than others."""
APART_SECONDS = 0.5
"""Of the ends of short steps one is kept in so long."""
STILL_SECONDS = 10.0
STILL_STEPS = 3
"""A loop that has not ended a step for so long, and for so many of its steps, stands still."""


class Rates(NamedTuple):
    """How a loop goes; None is what cannot be told."""

    rate: float | None = None
    """Iterations a second."""
    samples: float | None = None
    """Samples a second."""
    waited: float | None = None
    """Which part of the time it has waited for items."""

    @classmethod
    def between(cls, since: Totals, end: Totals) -> Rates:
        """Return the rates from the end of one step to that of another."""
        steps, seconds = end.steps - since.steps, end.seconds - since.seconds
        if steps <= 0 or seconds <= 0:
            return cls()
        waited = min(1.0, (end.waited - since.waited) / seconds)
        return cls(
            steps / seconds,
            (end.samples - since.samples) / seconds if end.samples else None,
            waited if end.waited else None,
        )


class Ends:
    """The ends of steps that a loop's rate is made from.

    The thread that runs the loop adds them; whoever reads `span` gets two that fit together.
    """

    def __init__(self, began: Totals) -> None:
        self.span = began, began
        """From the end of which step to that of which other one the rate is told, the last one."""
        self._began = began
        self._kept = deque([began])

    def add(self, end: Totals) -> None:
        """Take in how all stands between two steps."""
        if end.steps <= self.span[1].steps:
            return  # no step has ended since
        kept = self._kept
        if kept[0] is self._began and len(kept) > 1:
            # The first step imports, compiles, connects and starts workers: the others tell more.
            kept.popleft()
        while len(kept) > 1 and _enough(kept[1], end):
            kept.popleft()
        self.span = kept[0], end
        if kept[-1] is self._began or end.seconds - kept[-1].seconds >= APART_SECONDS:
            kept.append(end)

    def rates(self) -> Rates:
        """Return how the loop goes of late. Any thread."""
        return Rates.between(*self.span)

    def left(self, now: float, done: int, total: int) -> float | None:
        """Return the seconds to the end of all steps. Any thread.

        The step that is under way may be a long one; those after it are still to come.
        """
        rate, last = self.rates().rate, self.span[1]
        if rate is None:
            return None
        planned = (total - last.steps) / rate - (now - last.seconds)
        return max(0.0, planned, (total - done - 1) / rate)

    def still(self, now: float) -> float | None:
        """Return for how long no step has ended, if steps are far shorter. Any thread."""
        rate, since = self.rates().rate, now - self.span[1].seconds
        if rate is None or since <= max(STILL_SECONDS, STILL_STEPS / rate):
            return None
        return since


def _enough(since: Totals, end: Totals) -> bool:
    return (
        end.seconds - since.seconds >= SHORTEST_SECONDS and end.steps - since.steps >= FEWEST_STEPS
    )
