"""Complete series of everything that a job has logged, for analysis, pandas and CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbdist.metrics.points_file import stored_frames, whole_frames
from nbdist.metrics.tries import Tries, kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from nbdist.metrics.points_file import Column

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
    tries: NDArray[np.int64]
    """How often the job had been restarted by then."""

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

    def last(self, ranks: Iterable[int] | None = None) -> float:
        """Return the mean of the last values of the ranks that the last try has had.

        Parameters
        ----------
        ranks
            Only these ranks, if any of them has logged; by default all.
        """
        now = self.tries == self.tries.max()
        if ranks is not None and (mine := now & np.isin(self.ranks, list(ranks))).any():
            now = mine
        _, last = np.unique(self.ranks[now][::-1], return_index=True)
        return float(np.mean(self.values[now][::-1][last]))

    def max(self) -> float:
        """Return the largest value of all ranks; NaN if there is no number."""
        return float(np.fmax.reduce(self.values))


def load(files: dict[int, Path]) -> dict[str, Series]:
    """Read all series of a job from its ranks' files, without values that a later try replaces."""
    found: dict[str, list[tuple[int, int, Column]]] = {}
    tries = Tries()
    for rank, path in files.items():
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        for _, frame in whole_frames(data):
            for column in frame.columns:
                tries.note(frame.start, column)
                found.setdefault(column.name, []).append((rank, frame.start, column))
    return {name: _joined(columns, tries) for name, columns in found.items()}


def _joined(columns: list[tuple[int, int, Column]], tries: Tries) -> Series:
    parts = [kept(column, tries.stands(start, column)) for _, start, column in columns]
    lengths = [len(part[0]) // 8 for part in parts]
    steps, times, values = (b"".join(part[i] for part in parts) for i in range(3))
    return Series(
        np.repeat([rank for rank, _, _ in columns], lengths),
        np.frombuffer(steps, np.int64),
        np.frombuffer(times, np.float64),
        np.frombuffer(values, np.float64),
        np.repeat([start for _, start, _ in columns], lengths),
    )


def rows(series: dict[str, Series]) -> Iterable[tuple[Any, ...]]:
    """Return a row of `COLUMNS` for each value."""
    for name, each in series.items():
        columns = (each.ranks.tolist(), each.steps.tolist(), each.times.tolist())
        for rank, step, at, value in zip(*columns, each.values.tolist(), strict=True):
            yield name, rank, step, at, value


def lines(files: dict[int, Path]) -> Iterator[str]:
    """Yield the text of a CSV file with all values, rank by rank, in pieces."""
    text, tries = io.StringIO(), Tries()
    for path in files.values():
        for frame in stored_frames(path):
            for column in frame.columns:
                tries.note(frame.start, column)
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for rank, path in files.items():
        for frame in stored_frames(path):
            for column in frame.columns:
                steps, times, values = kept(column, tries.stands(frame.start, column))
                parts = (
                    np.frombuffer(steps, np.int64), np.frombuffer(times, np.float64),
                    np.frombuffer(values, np.float64),
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
