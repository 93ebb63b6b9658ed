"""How fast a loader reads with more and more workers: the table of `nbdist.reading`."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.metrics.scaling import UNKNOWN, number
from nbdist.metrics.tables import html_table, text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLES = ("workers", "samples/s", "MB/s", "first batch, s")
WITH_FILES = ("files MB/s", "of the storage's speed")


@dataclass(frozen=True)
class Row:
    """What a loader did with so many workers; None where something cannot be told."""

    workers: int
    batches: int
    seconds: float
    """From the start of its workers to its last batch."""
    first_batch: float
    """Seconds until the first batch: workers start, imports."""
    samples_per_second: float | None
    megabytes_per_second: float | None
    """Of what the batches hold, 1 MB being a million bytes."""
    file_megabytes_per_second: float | None = None
    """Of the files' bytes, as far as its samples are a part of all."""
    of_storage: float | None = None
    """`file_megabytes_per_second` as a part of the storage's own speed."""
    from_storage: float | None = None
    """Which part of these bytes the system counted as read from the storage, not from memory."""


@dataclass(frozen=True)
class Storage:
    """What reading the files alone came to."""

    threads: int
    megabytes_per_second: float
    from_storage: float | None
    """As in `Row`."""


@dataclass(frozen=True, repr=False)
class Reading:
    """How fast a loader reads, with more and more workers."""

    rows: list[Row]
    storage: list[Storage] = field(default_factory=list)
    """The files alone, read by one thread and by as many as there were workers."""
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Row:
        return self.rows[place]

    def to_pandas(self) -> Any:  # a DataFrame
        """Return its rows as a pandas frame.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas as pd  # a user's choice

        return pd.DataFrame([asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        return "\n".join([text_table(*self._table()), *self._words()])

    def _repr_html_(self) -> str:
        words = "".join(f"<div>{html.escape(line)}</div>" for line in self._words())
        return html_table(*self._table(), "Reading") + words

    def _words(self) -> list[str]:
        told = [
            f"the files alone, read by {threads(each.threads)}: "
            f"{number(each.megabytes_per_second)} MB/s"
            for each in self.storage
        ]
        return [*told, *self.notes]

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        titles = (*TITLES, *WITH_FILES) if self.storage else TITLES
        rows = [_cells(row)[: len(titles)] for row in self.rows]
        return titles, rows


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.workers), number(row.samples_per_second), number(row.megabytes_per_second),
        f"{row.first_batch:.3g}", number(row.file_megabytes_per_second),
        UNKNOWN if row.of_storage is None else f"{100 * row.of_storage:.0f} %",
    )  # fmt: skip


def threads(count: int) -> str:
    """Return how many there are, in words."""
    return f"{count} thread" + "s" * (count > 1)
