"""Finds the rank that slows down the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbdist.machine.amounts import in_milliseconds, in_share

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOWER = 0.1
"""A rank is reported if it delays the others by at least this share of a step..."""
SHORTEST = 0.001
"""...and by at least this many seconds, as shorter delays come from other load."""


class Slowest(NamedTuple):
    """A rank that is clearly slower than the others."""

    rank: int
    seconds: float
    """How much longer than usual its steps take."""
    share: float
    """The same as a share of a step."""

    def __str__(self) -> str:
        more = f"{in_milliseconds(self.seconds)} ms/step slower than the median"
        return f"Rank {self.rank} is the slowest: {more} ({in_share(self.share)})."


def slowest(own: dict[int, float], whole: dict[int, float] | None = None) -> Slowest | None:
    """Return the slowest rank, if it is clearly slower than the others.

    Parameters
    ----------
    own
        The seconds a step of each rank, without waits for other ranks.
    whole
        The seconds a step with all waits; by default `own`.
    """
    if len(own) < 2:  # noqa: PLR2004  # one rank cannot be slower than others
        return None
    rank = max(own, key=own.__getitem__)
    more = own[rank] - _usual(step for other, step in own.items() if other != rank)
    step = _usual((whole or own).values())
    if more < max(SHORTEST, SLOWER * step):
        return None
    return Slowest(rank, more, more / step)


def _usual(steps: Iterable[float]) -> float:
    """Return the median; the lower of the two middle values for an even number."""
    found = sorted(steps)
    return found[(len(found) - 1) // 2]
