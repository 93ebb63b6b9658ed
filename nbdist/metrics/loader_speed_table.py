"""How fast a loader reads with more and more workers: the table of `nbdist.reading`."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbdist.machine.amounts import counted, in_digits, in_share, known
from nbdist.metrics.figures_table import Table

TITLES = ("workers", "samples/s", "MB/s", "first batch (s)")
WITH_FILES = ("files MB/s", "of the storage's speed")


@dataclass(frozen=True)
class Row:
    """The figures of a loader with one number of workers; None if unknown."""

    workers: int
    batches: int
    seconds: float
    """Seconds from the start of the workers to the last batch."""
    first_batch: float
    """Seconds until the first batch: workers start and import modules."""
    samples_per_second: float | None
    megabytes_per_second: float | None
    """The batches' data; 1 MB is a million bytes."""
    samples: int | None = None
    """The samples of a whole pass; None if the pass was stopped after the time limit."""
    file_megabytes_per_second: float | None = None
    """The files' data, in proportion to the samples that were read."""
    of_storage: float | None = None
    """`file_megabytes_per_second` as a part of the storage's own speed."""
    from_storage: float | None = None
    """The part of these bytes that came from the storage, not from memory, as the system counts."""


@dataclass(frozen=True)
class Storage:
    """The speed of reading the files alone."""

    threads: int
    megabytes_per_second: float
    from_storage: float | None
    """As in `Row`."""


@dataclass(frozen=True, repr=False)
class Reading(Table[Row]):
    """How fast a loader reads, with more and more workers."""

    CAPTION = "Reading"

    storage: list[Storage] = field(default_factory=list)
    """The speed of the files alone, read by one thread and by as many threads as workers."""

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
    """Return a number of threads in words."""
    return counted(number, "thread")
