"""What different ways of the same training do a second, and what they come to.

The table alone; its figures are made by `nbdist.hub.throughput`.
"""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.metrics.scaling import UNKNOWN, Row, milliseconds, number
from nbdist.metrics.tables import html_table, text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLES = (
    "", "ranks", "samples/s", "times the first", "s an epoch", "ms a step", "compute", "data",
    "communication",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """How one of them went."""

    name: str
    pace: Row
    """Its throughput; `speed_up` is compared with the first way."""
    metrics: dict[str, float]
    """By name, the last value logged: the mean over the ranks that have logged that step."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """A table of ways of the same training, the first of which the others are compared with.

    Examples
    --------
    >>> found = nbdist.compare({"DDP": nbdist.Call(train, np=2)})  # doctest: +SKIP
    >>> found["DDP"].pace.samples_per_second, found["DDP"].metrics  # doctest: +SKIP
    """

    ways: list[Way]
    metrics: list[str] = field(default_factory=list)
    """Names of the metrics that have a column."""
    notes: list[str] = field(default_factory=list)
    """What a person should know before believing them."""

    def __iter__(self) -> Iterator[Way]:
        return iter(self.ways)

    def __len__(self) -> int:
        return len(self.ways)

    def __getitem__(self, name: str) -> Way:
        return next(way for way in self.ways if way.name == name)

    def to_pandas(self) -> Any:  # a DataFrame
        """Return it as a pandas frame: a row for each way, its figures, then its metrics.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas as pd  # a user's choice

        rows = [{"way": way.name, **asdict(way.pace), **way.metrics} for way in self.ways]
        return pd.DataFrame(rows).set_index("way")

    def __repr__(self) -> str:
        return "\n".join([text_table(*self._table()), *self.notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return html_table(*self._table(), "Comparison") + notes

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        rows = []
        for way in self.ways:
            last = [way.metrics.get(name) for name in self.metrics]
            told = (UNKNOWN if value is None else f"{value:.4g}" for value in last)
            rows.append((*_cells(way), *told))
        return (*TITLES, *self.metrics), rows


def _cells(way: Way) -> tuple[str, ...]:
    pace = way.pace
    return (
        way.name, str(pace.ranks), number(pace.samples_per_second), number(pace.speed_up),
        number(pace.epoch_seconds),
        *(milliseconds(part) for part in (pace.step_seconds, pace.compute, pace.data)),
        milliseconds(pace.communication),
    )  # fmt: skip
