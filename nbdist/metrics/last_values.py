"""Follows the last values of a job's first metrics on one rank. One thread."""

from __future__ import annotations

import contextlib
import math
import struct
from typing import TYPE_CHECKING

import msgspec

from nbdist.metrics.points_file import points_file, whole_frames

if TYPE_CHECKING:
    from pathlib import Path

MOST = 4
"""The number of names that are followed."""
VALUE = struct.Struct("=d")


class Last:
    """Follows the values that one rank logs.

    Parameters
    ----------
    folder, job, rank
        They name the file to read.
    """

    def __init__(self, folder: Path, job: str, rank: int) -> None:
        self._path = points_file(folder, job, rank)
        self._read_to = 0
        self._values: dict[str, float | None] = {}

    def values(self) -> dict[str, float | None]:
        """Return the last value of each name, None if it is not finite."""
        # A missing or broken file must not prevent the rest from being shown.
        with contextlib.suppress(OSError, msgspec.MsgspecError, struct.error):
            if self._path.stat().st_size > self._read_to:
                self._read()
        return dict(self._values)

    def _read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        read = 0
        for end, frame in whole_frames(data):
            for column in frame.columns:
                if column.name in self._values or len(self._values) < MOST:
                    (value,) = VALUE.unpack(column.values[-VALUE.size :])
                    self._values[column.name] = value if math.isfinite(value) else None
            read = end
        self._read_to += read
