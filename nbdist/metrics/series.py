"""Complete series of everything that a job has logged, for analysis, pandas and CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbdist.metrics.points_file import stored_frames, whole_frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

PIECE = 1 << 18
"""About how many characters of a CSV file are passed on at a time."""
COLUMNS = ("name", "rank", "step", "time", "value")


class Series(NamedTuple):
    """All values of one name, rank by rank in the order in which they were logged.

    All arrays have the shape ``[values]``.
    """

    ranks: NDArray[np.int64]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    """Seconds since 1970."""
    values: NDArray[np.float64]

    def of(self, rank: int) -> Series:
        """Return the values of one rank."""
        mine = self.ranks == rank
        return Series(*(array[mine] for array in self))

    def mean(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the steps, ascending, and the mean over ranks at each step.

        If a rank has logged a step more than once, its last value counts.
        """
        pairs = np.stack([self.ranks, self.steps])
        _, last = np.unique(pairs[:, ::-1], axis=1, return_index=True)
        kept = len(self.steps) - 1 - last
        steps, where = np.unique(self.steps[kept], return_inverse=True)
        return steps, np.bincount(where, self.values[kept]) / np.bincount(where)

    def max(self) -> float:
        """Return the largest value of all ranks; NaN if there is no number."""
        return float(np.fmax.reduce(self.values))


def load(files: dict[int, Path]) -> dict[str, Series]:
    """Read all series of a job from its ranks' files."""
    parts: dict[str, dict[int, list[tuple[bytes, bytes, bytes]]]] = {}
    for rank, path in files.items():
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        for _, frame in whole_frames(data):
            for column in frame.columns:
                ranks = parts.setdefault(column.name, {})
                ranks.setdefault(rank, []).append((column.steps, column.times, column.values))
    return {name: _joined(ranks) for name, ranks in parts.items()}


def _joined(ranks: dict[int, list[tuple[bytes, bytes, bytes]]]) -> Series:
    steps, times, values = (
        b"".join(part[i] for parts in ranks.values() for part in parts) for i in range(3)
    )
    lengths = [sum(len(part[0]) for part in parts) // 8 for parts in ranks.values()]
    return Series(
        np.repeat(list(ranks), lengths),
        np.frombuffer(steps, np.int64),
        np.frombuffer(times, np.float64),
        np.frombuffer(values, np.float64),
    )


def rows(series: dict[str, Series]) -> Iterable[tuple[Any, ...]]:
    """Return a row of `COLUMNS` for each value."""
    for name, each in series.items():
        columns = (each.ranks.tolist(), each.steps.tolist(), each.times.tolist())
        for rank, step, at, value in zip(*columns, each.values.tolist(), strict=True):
            yield name, rank, step, at, value


def lines(files: dict[int, Path]) -> Iterator[str]:
    """Yield the text of a CSV file with all values, rank by rank, in pieces."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for rank, path in files.items():
        for frame in stored_frames(path):
            for column in frame.columns:
                parts = (
                    np.frombuffer(column.steps, np.int64), np.frombuffer(column.times, np.float64),
                    np.frombuffer(column.values, np.float64),
                )  # fmt: skip
                for step, at, value in zip(*(part.tolist() for part in parts), strict=True):
                    writer.writerow((column.name, rank, step, at, value))
            if text.tell() >= PIECE:
                yield text.getvalue()
                text.seek(0)
                text.truncate()
    yield text.getvalue()


def write_csv(series: dict[str, Series], path: Path) -> None:
    """Write all values into a CSV file with a header line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows(series))
