"""The curve of one metric on all ranks, thinned to a bounded number of buckets.

A bucket covers `stride` steps. When all buckets are used, neighbouring buckets are merged and the
stride doubles. So a curve of ten points is exact, and a curve of a million points keeps the mean
and the range of every bucket, with bounded memory and drawing time. No locks: see `Metrics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

BUCKETS = 400
MOST_MARKS = 20
NEVER = np.iinfo(np.int64).min
"""Marks a bucket without a step."""


class Mark(NamedTuple):
    """A value that is not finite."""

    step: int
    kind: str
    """nan, inf or -inf."""
    rank: int


class Line(NamedTuple):
    """A curve over all ranks for drawing: one point for each bucket that has values."""

    steps: NDArray[np.float64]
    """The last step in the bucket."""
    mean: NDArray[np.float64]
    """NaN where no rank has a finite value."""
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    times: NDArray[np.float64]
    """When the last value in the bucket was logged, in seconds since 1970."""


class Curve:
    """The curve of one metric.

    Parameters
    ----------
    name
        The logged name.
    ranks
        The job's ranks.
    buckets
        The maximal number of buckets, which is even.
    """

    def __init__(self, name: str, ranks: tuple[int, ...], buckets: int = BUCKETS) -> None:
        self.name = name
        self._ranks, self._buckets = ranks, buckets
        self._rows: dict[int, int] = {}
        """For each rank that has logged this metric, its row in the arrays below."""
        self.stride = 1
        self._origin = 0
        self.points = 0
        """The number of logged values."""
        self.changes = 0
        """Increases with every change."""
        self.marks: list[Mark] = []
        self.last: dict[int, tuple[int, float]] = {}
        """For each rank, the last step and value."""
        self._at = np.full(self._buckets, NEVER, np.int64)
        self._at_known = np.zeros(self._buckets, np.bool_)
        self._count = np.zeros((0, self._buckets))
        self._total = np.zeros((0, self._buckets))
        self._low = np.zeros((0, self._buckets))
        self._high = np.zeros((0, self._buckets))
        self._time = np.zeros((0, self._buckets))

    def add(
        self, lengths: dict[int, int], steps: NDArray[np.int64], values: NDArray[np.float64],
        times: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Add values of several ranks.

        Parameters
        ----------
        lengths
            The number of values of each rank, in their order.
        steps, values, times
            The ranks' arrays one after the other, shape ``[sum of lengths]``.
        """
        rows = np.repeat([self._row(rank) for rank in lengths], list(lengths.values()))
        ends = np.cumsum(list(lengths.values()))
        for rank, end in zip(lengths, ends, strict=True):
            self.last[rank] = int(steps[end - 1]), float(values[end - 1])
        self._fit(int(steps.min()), int(steps.max()))
        self.points += len(steps)
        self.changes += 1
        # Unsigned: the distance of two steps can be larger than int64.
        away = steps.view(np.uint64) - np.uint64(self._origin % 2**64)
        buckets = (away // np.uint64(self.stride)).astype(np.int64)
        np.maximum.at(self._at, buckets, steps)
        self._at_known[buckets] = True
        np.maximum.at(self._time.reshape(-1), rows * self._buckets + buckets, times)
        finite = np.isfinite(values)
        if not finite.all():
            self._mark(lengths, steps, values, finite)
            rows, buckets, values = rows[finite], buckets[finite], values[finite]
        at = rows * self._buckets + buckets
        np.add.at(self._count.reshape(-1), at, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(self._total.reshape(-1), at, values)
        np.minimum.at(self._low.reshape(-1), at, values)
        np.maximum.at(self._high.reshape(-1), at, values)

    def rewind(self, step: int) -> None:
        """Drop all values from this step on, where the job's ranks begin again."""
        self.changes += 1
        first = max(0, (step - self._origin) // self.stride)
        for row in self._rows.values():
            self._clear(row, slice(first, None))
        self._at_known[first:], self._at[first:] = False, NEVER
        self.marks = [mark for mark in self.marks if mark.step < step]
        self.last.clear()

    def forget_last(self, ranks: Iterable[int]) -> None:
        """Leave these ranks out of the last values: they are gone, or have not begun again."""
        for rank in list(ranks):
            self.last.pop(rank, None)

    def _clear(self, row: int, where: slice) -> None:
        self._count[row, where] = self._total[row, where] = 0
        self._low[row, where], self._high[row, where] = np.inf, -np.inf
        self._time[row, where] = -np.inf

    def _row(self, rank: int) -> int:
        if rank not in self._rows:
            self._rows[rank] = len(self._rows)
            blank = np.zeros((1, self._buckets))
            self._count = np.concatenate([self._count, blank])
            self._total = np.concatenate([self._total, blank])
            self._low = np.concatenate([self._low, blank + np.inf])
            self._high = np.concatenate([self._high, blank - np.inf])
            self._time = np.concatenate([self._time, blank - np.inf])
        return self._rows[rank]

    def _mark(
        self, lengths: dict[int, int], steps: NDArray[np.int64], values: NDArray[np.float64],
        finite: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        ranks = np.repeat(list(lengths), list(lengths.values()))
        for i in np.flatnonzero(~finite)[: MOST_MARKS - len(self.marks)]:
            kind = "nan" if np.isnan(values[i]) else "inf" if values[i] > 0 else "-inf"
            self.marks.append(Mark(int(steps[i]), kind, int(ranks[i])))

    # -- buckets -------------------------------------------------------------------------------

    def _fit(self, first: int, last: int) -> None:
        """Make room for steps from `first` to `last`."""
        if not self.points:
            self._origin = first
        while True:
            shift = max(0, -((first - self._origin) // self.stride))
            used = np.flatnonzero(self._at_known)
            top = max((last - self._origin) // self.stride, int(used[-1]) if len(used) else 0)
            if top + shift < self._buckets:
                break
            self._double()
        if shift:
            self._origin -= shift * self.stride
            self._shift(shift)

    def _double(self) -> None:
        self.stride *= 2
        half = self._buckets // 2
        self._at[:half] = np.where(
            self._at_known.reshape(-1, 2), self._at.reshape(-1, 2), NEVER
        ).max(axis=1)
        self._at_known[:half] = self._at_known.reshape(-1, 2).any(axis=1)
        self._at_known[half:] = False
        self._at[half:] = NEVER
        for row in self._rows.values():
            for array, merge in (
                (self._count, np.add), (self._total, np.add),
                (self._low, np.minimum), (self._high, np.maximum), (self._time, np.maximum),
            ):  # fmt: skip
                with np.errstate(over="ignore", invalid="ignore"):
                    array[row, :half] = merge.reduce(array[row].reshape(-1, 2), axis=1)
            self._clear(row, slice(half, None))

    def _shift(self, by: int) -> None:
        of_ranks = (self._count, self._total, self._low, self._high, self._time)
        for array in (self._at, self._at_known, *of_ranks):
            array[..., by:] = array[..., :-by].copy()
        self._at_known[:by] = False
        self._at[:by] = NEVER
        for row in self._rows.values():
            self._clear(row, slice(0, by))

    # -- for drawing ---------------------------------------------------------------------------

    @property
    def ranks(self) -> list[int]:
        """The ranks that have logged it, as far as it was not replaced."""
        return sorted(
            rank for rank, row in self._rows.items() if rank in self.last or self._count[row].any()
        )

    @property
    def line(self) -> Line:
        """The mean over ranks and the range between all values, bucket by bucket."""
        known = self._at_known
        count = self._count.sum(axis=0)[known]
        low, high = self._low.min(axis=0)[known], self._high.max(axis=0)[known]
        # Every rank has the same weight, even if it logs more often.
        with np.errstate(all="ignore"):
            means = self._total / self._count
            there = self._count > 0
            mean = np.where(there, means, 0).sum(axis=0) / there.sum(axis=0)
        low[count == 0] = high[count == 0] = np.nan
        times = self._time.max(axis=0)[known]
        return Line(self._at[known].astype(np.float64), mean[known], low, high, times)

    def of(self, rank: int) -> NDArray[np.float64]:
        """Return a rank's mean in each bucket of `line`, NaN where the rank has no value."""
        row = self._rows[rank]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: NDArray[np.float64] = (self._total[row] / self._count[row])[self._at_known]
        return mean

    def times_of(self, rank: int) -> NDArray[np.float64]:
        """Return a rank's last time in each bucket of `line`, NaN where the rank has no value."""
        times = self._time[self._rows[rank]][self._at_known]
        return np.where(np.isfinite(times), times, np.nan)

    @property
    def range(self) -> tuple[float | None, float | None]:
        """The smallest and the largest finite value; None without values."""
        there = self._count > 0
        if not there.any():
            return None, None
        return float(self._low[there].min()), float(self._high[there].max())

    @property
    def latest(self) -> float | None:
        """The mean of the ranks' last values; None without values."""
        values = [value for _, value in self.last.values()]
        with np.errstate(all="ignore"):
            return float(np.mean(values)) if values else None
