"""`Metrics`: reads what the ranks of a job have logged, as curves and as series. Any thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nbdist.metrics import series
from nbdist.metrics.points_file import HEAD_BYTES, points_file, resources_file, whole_frames
from nbdist.metrics.series import Series
from nbdist.metrics.thinned_curves import BUCKETS, Curve
from nbdist.metrics.tries import Tries, kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbdist.metrics.points_file import Column

MOST_CURVES, FEWEST_CURVES = 1000, 100
"""The number of names with a curve, the first ones: no page shows more."""
MOST_ROWS = 16_000
"""The most rows, one for each rank of each curve; a row takes 16 kB."""
PIECE = 1 << 20
"""Bytes that are read of a rank at a time, so that a long job's files do not fill the memory."""

MANY_RANKS = 32
RESOURCE_BUCKETS = 128
"""Points of a curve of resources, whose panel is small; half of them with more than
`MANY_RANKS`."""

Batch = dict[str, dict[int, tuple[list[bytes], list[bytes], list[bytes]]]]
"""For each name and rank: the columns of steps, values and times."""


class Metrics:
    """The metrics of one job: complete series by name, and thinned curves for the screen.

    Parameters
    ----------
    folder, job, ranks
        They name the files to read, which may still grow.
    file
        Returns the path of a rank's file.
    kind
        What the files contain, in a word.
    buckets
        The maximal number of points of a curve.

    Examples
    --------
    >>> job.metrics["val/loss"].values.min()  # doctest: +SKIP
    >>> steps, loss = job.metrics["loss"].mean()  # doctest: +SKIP
    >>> job.metrics.to_pandas().query("rank == 0")  # doctest: +SKIP
    """

    def __init__(
        self, folder: Path, job: str, ranks: tuple[int, ...], *,
        file: Callable[[Path, str, int], Path] = points_file, kind: str = "metrics",
        buckets: int = BUCKETS,
    ) -> None:  # fmt: skip
        self.folder = folder
        self._job, self._ranks, self._kind, self._buckets = job, ranks, kind, buckets
        self._files = {rank: file(folder, job, rank) for rank in ranks}
        self._read_to = dict.fromkeys(ranks, 0)
        self._starts = dict.fromkeys(ranks, 0)
        """How often the job had been restarted when a rank has logged last."""
        self._tries = Tries()
        self._curves: dict[str, Curve] = {}
        self._further: dict[str, None] = {}
        """Names without a curve, in order."""
        self.broken: dict[int, str] = {}
        """For each rank whose file cannot be read, the reason."""
        self._lock = threading.Lock()
        self._whole: tuple[int, dict[str, Series]] = 0, {}

    # -- curves --------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read what was logged since the last call; return whether there was anything."""
        with self._lock:
            found = False
            while batch := self._read_piece():
                self._take(batch)
                found = True
            return found

    def _read_piece(self) -> Batch:
        """Return each rank's next values; a rank whose file cannot be read goes to `broken`."""
        batch: Batch = {}
        for rank in self._ranks:
            try:
                self._read_rank(rank, batch)
                self.broken.pop(rank, None)
            except (OSError, msgspec.MsgspecError) as err:  # the other ranks are still shown
                self.broken[rank] = str(err)
        return batch

    def curves(self) -> list[Curve]:
        """Return the curves as of the last `read`, in the order of their first values.

        The next `read` changes them, so it must be on the same thread.
        """
        with self._lock:
            return list(self._curves.values())

    def further(self) -> list[str]:
        """Return the names without a curve, since there are too many, as of the last `read`."""
        with self._lock:
            return list(self._further)

    def _read_rank(self, rank: int, batch: Batch) -> None:
        path = self._files[rank]
        try:
            if path.stat().st_size <= self._read_to[rank]:
                return
            with path.open("rb") as file:
                file.seek(self._read_to[rank])
                data = file.read(PIECE)
                length = HEAD_BYTES + int.from_bytes(data[:HEAD_BYTES], "little")
                data += file.read(max(0, length - len(data)))  # a frame may be longer than a piece
        except FileNotFoundError:
            return
        begin = self._read_to[rank]
        for end, frame in whole_frames(data):
            if frame.start != self._starts[rank]:
                self._take(batch)
                batch.clear()
                self._starts[rank] = frame.start
            for column in frame.columns:
                self._add(rank, frame.start, column, batch)
            self._read_to[rank] = begin + end

    def _add(self, rank: int, start: int, column: Column, batch: Batch) -> None:
        step = self._tries.note(start, column)
        if step is not None:
            self._take(batch)
            batch.clear()
            if column.name in self._curves:
                self._curves[column.name].rewind(step)
        steps, times, values = kept(column, self._tries.stands(start, column))
        if steps:
            parts = batch.setdefault(column.name, {}).setdefault(rank, ([], [], []))
            for part, new in zip(parts, (steps, values, times), strict=True):
                part.append(new)

    def _take(self, batch: Batch) -> None:
        most = min(MOST_CURVES, max(FEWEST_CURVES, MOST_ROWS // max(len(self._ranks), 1)))
        for name, ranks in batch.items():
            if name not in self._curves:
                if len(self._curves) >= most:
                    self._further[name] = None
                    continue
                self._curves[name] = Curve(name, self._ranks, self._buckets)
            steps, values, times = (
                b"".join(part for all_ in ranks.values() for part in all_[i]) for i in range(3)
            )
            lengths = {rank: sum(map(len, all_[0])) // 8 for rank, all_ in ranks.items()}
            self._curves[name].add(
                lengths, np.frombuffer(steps, np.int64), np.frombuffer(values, np.float64),
                np.frombuffer(times, np.float64),
            )  # fmt: skip
            # A rank's file may be read when others have begun again.
            self._curves[name].forget_last(
                [rank for rank in ranks if self._starts[rank] < self._tries.last(name)]
            )

    # -- whole series --------------------------------------------------------------------------

    def _series(self) -> dict[str, Series]:
        with self._lock:
            size = sum(path.stat().st_size for path in self._files.values() if path.exists())
            if self._whole[0] != size:
                self._whole = size, series.load(self._files)
            return self._whole[1]

    @property
    def names(self) -> list[str]:
        """The logged names."""
        return list(self._series())

    def __getitem__(self, name: str) -> Series:
        """Return all values of a name.

        Raises
        ------
        KeyError
            If nothing was logged under this name; the message lists the names.
        """
        found = self._series()
        if name not in found:
            msg = (
                f"nothing was logged as {name!r}; the logged names are {', '.join(found) or 'none'}"
            )
            raise KeyError(msg)
        return found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._series()

    def __iter__(self) -> Iterator[str]:
        return iter(self._series())

    def __len__(self) -> int:
        return len(self._series())

    def last(self, name: str) -> float:
        """Return the mean of the ranks' last values of a name, of the ranks that go on."""
        return self[name].last()

    def to_pandas(self) -> Any:  # a DataFrame
        """Return all values as a pandas frame: name, rank, step, time (UTC), value.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        import pandas as pd  # a user's choice

        frame = pd.DataFrame(series.rows(self._series()), columns=list(series.COLUMNS))
        frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
        return frame

    def to_csv(self, path: str | Path) -> Path:
        """Write all values into a file with the columns name, rank, step, time, value."""
        path = Path(path)
        series.write_csv(self._series(), path)
        return path

    def __repr__(self) -> str:
        found = self._series()
        told = ", ".join(f"{name} ({len(each.values)})" for name, each in found.items())
        return f"<{self._kind} of job {self._job}: {told or 'nothing was logged'}>"


def resources(folder: Path, job: str, ranks: tuple[int, ...]) -> Metrics:
    """Return the resource use of a job's ranks; see `nbdist.job.job.Job.resources`."""
    buckets = RESOURCE_BUCKETS if len(ranks) <= MANY_RANKS else RESOURCE_BUCKETS // 2
    return Metrics(folder, job, ranks, file=resources_file, kind="resources", buckets=buckets)
