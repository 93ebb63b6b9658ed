"""The table of the same cell's speed on more and more ranks, and of the parts of a step's time.

The table only; `nbdist.job.throughput` computes its figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from nbdist.machine.amounts import in_digits, in_milliseconds, in_share, known
from nbdist.metrics.figures_table import Table

TITLES = (
    "ranks", "samples/s", "speed-up", "efficiency", "ms/step", "compute", "data",
    "communication", "slowest rank",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The figures of one run; None if unknown."""

    ranks: int
    samples_per_second: float | None = None
    """Of all ranks together."""
    speed_up: float | None = None
    """Samples a second, relative to the run with the fewest ranks or to the first way."""
    efficiency: float | None = None
    """`speed_up` for each rank; 1 is ideal."""
    step_seconds: float | None = None
    """Seconds a step; the mean over ranks, like the next three."""
    compute: float | None = None
    """The rest of a step without `data` and `communication`."""
    data: float | None = None
    """Seconds a step spent waiting for the next batch."""
    communication: float | None = None
    """Seconds a step spent waiting for other ranks, without what overlaps computing."""
    slowest: int | None = None
    """The rank for which the others wait, if one is clearly slower."""
    slower_by: float | None = None
    """The additional seconds a step of this rank."""
    steps: int = 0
    """The number of rank zero's steps behind the figures."""
    epoch_seconds: float | None = None
    """The slowest rank's time for one pass through all items, without the first pass unless it was
    the only one."""


@dataclass(frozen=True, repr=False)
class Scaling(Table[Row]):
    """A table of runs of the same cell.

    Examples
    --------
    >>> nbdist.jobs()[-1].scaling.to_pandas()  # doctest: +SKIP
    >>> [row.efficiency for row in nbdist.jobs()[-1].scaling]  # doctest: +SKIP
    """

    CAPTION = "Scaling"

    def _titles(self) -> tuple[str, ...]:
        return TITLES

    def _cells(self, row: Row) -> tuple[str, ...]:
        parts = row.step_seconds, row.compute, row.data, row.communication
        by = f" (+{in_milliseconds(row.slower_by or 0)} ms)"
        return (
            str(row.ranks), known(row.samples_per_second, in_digits),
            known(row.speed_up, in_digits), known(row.efficiency, in_share),
            *(known(part, in_milliseconds) for part in parts),
            "" if row.slowest is None else f"{row.slowest}{by}",
        )  # fmt: skip
