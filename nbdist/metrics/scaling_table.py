"""What the same cell does a second on more and more ranks, and where the time of a step goes.

The table alone; its figures are made by `nbdist.job.throughput`.
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
    """The figures of one run; None where something cannot be told."""

    ranks: int
    samples_per_second: float | None = None
    """Of all ranks together."""
    speed_up: float | None = None
    """Samples a second, compared with those of the fewest ranks or of the first way."""
    efficiency: float | None = None
    """`speed_up` for each rank: 1 is all one could wish for."""
    step_seconds: float | None = None
    """The mean over ranks, as the following are."""
    compute: float | None = None
    """What is left of a step without `data` and `communication`."""
    data: float | None = None
    """Seconds a step spent waiting for the next batch."""
    communication: float | None = None
    """Seconds a step spent waiting for other ranks: what does not hide behind computing."""
    slowest: int | None = None
    """The rank that the others wait for, if one stands out."""
    slower_by: float | None = None
    """Seconds a step that it takes more than is usual."""
    steps: int = 0
    """How many the figures are made from, on rank zero."""
    epoch_seconds: float | None = None
    """What it takes to go through all items once, the slowest rank's; not the first time, unless it
    was the only one."""


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
