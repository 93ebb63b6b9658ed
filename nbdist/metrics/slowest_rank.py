"""Which rank holds the others up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbdist.machine.amounts import in_milliseconds, in_percent

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOWER = 0.1
"""A rank that holds the others up for that part of a step is told of."""
SHORTEST = 0.001
"""Seconds; what is less comes and goes with what else the machine does."""


class Slowest(NamedTuple):
    """A rank that stands out."""

    rank: int
    seconds: float
    """How much longer than usual it takes over a step."""
    share: float
    """Which part of a step that is."""

    def __str__(self) -> str:
        more = f"{in_milliseconds(self.seconds)} ms/step slower than the median"
        return f"Rank {self.rank} is the slowest: {more} ({in_percent(100 * self.share)})."


def slowest(own: dict[int, float], whole: dict[int, float] | None = None) -> Slowest | None:
    """Return the slowest rank, if it stands out.

    Parameters
    ----------
    own
        Seconds a step by rank, without what it waits for other ranks.
    whole
        The same with all waits, where `own` is without.
    """
    if len(own) < 2:  # noqa: PLR2004  # one is not slower than others
        return None
    rank = max(own, key=own.__getitem__)
    more = own[rank] - _usual(step for other, step in own.items() if other != rank)
    step = _usual((whole or own).values())
    if more < max(SHORTEST, SLOWER * step):
        return None
    return Slowest(rank, more, more / step)


def _usual(steps: Iterable[float]) -> float:
    """Return the median, the lower one of two."""
    found = sorted(steps)
    return found[(len(found) - 1) // 2]
