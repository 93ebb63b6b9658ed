"""What the same cell does a second on more and more ranks, and where the time of a step goes.

The table alone; its figures are made by `nbdist.hub.throughput`.
"""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.metrics.tables import html_table, text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN = "unknown"
TITLES = (
    "ranks", "samples/s", "speed-up", "efficiency", "ms a step", "compute", "data",
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
class Scaling:
    """A table of runs of the same cell.

    Examples
    --------
    >>> nbdist.jobs()[-1].scaling.to_pandas()  # doctest: +SKIP
    >>> [row.efficiency for row in nbdist.jobs()[-1].scaling]  # doctest: +SKIP
    """

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    """What a person should know before believing them."""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Row:
        return self.rows[place]

    def to_pandas(self) -> Any:  # a DataFrame
        """Return it as a pandas frame, a column for each of `Row`'s fields.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas as pd  # a user's choice

        return pd.DataFrame([asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        return "\n".join([text_table(TITLES, [_cells(row) for row in self.rows]), *self.notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return html_table(TITLES, [_cells(row) for row in self.rows], "Scaling") + notes


def _cells(row: Row) -> tuple[str, ...]:
    slow = "" if row.slowest is None else f"{row.slowest} (+{1000 * (row.slower_by or 0):.3g} ms)"
    return (
        str(row.ranks), number(row.samples_per_second), number(row.speed_up),
        UNKNOWN if row.efficiency is None else f"{100 * row.efficiency:.0f} %",
        *(milliseconds(part) for part in (row.step_seconds, row.compute, row.data)),
        milliseconds(row.communication), slow,
    )  # fmt: skip


def number(value: float | None) -> str:
    """Return a figure with three digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits


def milliseconds(seconds: float | None) -> str:
    """Return a time as a table has it."""
    return UNKNOWN if seconds is None else f"{1000 * seconds:.3g}"
