"""How fast a loader reads with more and more workers: the table of `nbdist.reading`."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbdist.machine.amounts import counted, in_digits, in_share, known
from nbdist.metrics.figures_table import Table

TITLES = ("workers", "samples/s", "MB/s", "first batch (s)")
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
    samples: int | None = None
    """In a whole pass; None if it was left after the time it may take."""
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
class Reading(Table[Row]):
    """How fast a loader reads, with more and more workers."""

    CAPTION = "Reading"

    storage: list[Storage] = field(default_factory=list)
    """The files alone, read by one thread and by as many as there were workers."""

    def _words(self) -> list[str]:
        told = [
            f"the files alone, read by {threads(each.threads)}: "
            f"{in_digits(each.megabytes_per_second)} MB/s"
            for each in self.storage
        ]
        return [*told, *self.notes]

    def _titles(self) -> tuple[str, ...]:
        return (*TITLES, *WITH_FILES) if self.storage else TITLES

    def _cells(self, row: Row) -> tuple[str, ...]:
        cells = (
            str(row.workers), known(row.samples_per_second, in_digits),
            known(row.megabytes_per_second, in_digits), in_digits(row.first_batch),
            known(row.file_megabytes_per_second, in_digits), known(row.of_storage, in_share),
        )  # fmt: skip
        return cells[: len(self._titles())]


def threads(number: int) -> str:
    """Return how many there are, in words."""
    return counted(number, "thread")
