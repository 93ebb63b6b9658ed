"""The table that compares the speed and the results of several ways of the same training.

The table only; `nbdist.job.throughput` computes its figures.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from nbdist.machine.amounts import in_digits, in_milliseconds, in_value, known
from nbdist.metrics.figures_table import Table
from nbdist.metrics.scaling_table import Row

LONGEST = 40
"""The most characters of a name in the table."""
TITLES = (
    "", "ranks", "samples/s", "speed-up", "s/epoch", "ms/step", "compute", "data",
    "communication",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way of the training, and its results."""

    name: str
    pace: Row
    """The throughput of the way; its `speed_up` is relative to the first way."""
    metrics: dict[str, float]
    """For each name the last logged value: the mean over the ranks that have logged it."""


@dataclass(frozen=True, repr=False)
class Comparison(Table[Way]):
    """A table of ways of the same training; speed-ups are relative to the first.

    Examples
    --------
    >>> found = nbdist.compare({"DDP": nbdist.Call(train, np=2)})  # doctest: +SKIP
    >>> [(way.name, way.pace.samples_per_second, way.metrics) for way in found]  # doctest: +SKIP
    """

    CAPTION = "Comparison"

    metrics: list[str] = field(default_factory=list)
    """The names of the metrics that have a column."""

    def way(self, name: str) -> Way:
        """Return the way of this name.

        Raises
        ------
        KeyError
            If there is no way of this name.
        """
        return {way.name: way for way in self.rows}[name]

    def to_pandas(self) -> Any:  # a DataFrame
        """Return the table as a pandas frame: a row for each way, with figures and metrics.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        return super().to_pandas().set_index("way")

    def _fields(self, row: Way) -> dict[str, Any]:
        fields = {"way": row.name, **asdict(row.pace)}
        logged = {
            f"{key} (metric)" if key in fields else key: row.metrics[key] for key in row.metrics
        }
        return fields | logged

    def _titles(self) -> tuple[str, ...]:
        return (*TITLES, *self.metrics)

    def _cells(self, row: Way) -> tuple[str, ...]:
        pace = row.pace
        last = (row.metrics.get(name) for name in self.metrics)
        name = " ".join(row.name.split())
        parts = pace.step_seconds, pace.compute, pace.data, pace.communication
        return (
            name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…", str(pace.ranks),
            known(pace.samples_per_second, in_digits), known(pace.speed_up, in_digits),
            known(pace.epoch_seconds, in_digits),
            *(known(part, in_milliseconds) for part in parts),
            *(known(value, in_value) for value in last),
        )  # fmt: skip
