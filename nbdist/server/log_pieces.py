"""Reads a rank's log in pieces, from any place, while the log grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nbdist.errors import UsageError
from nbdist.published.state_file import open_own

if TYPE_CHECKING:
    from nbdist.published.state_file import JobRecord, Record

MOST_BYTES = 256 * 1024
LONGEST_CHARACTER = 4


class Piece(NamedTuple):
    """A part of a log, counted from where the job's output begins."""

    text: str
    begin: int
    end: int
    size: int
    """The size of the job's output in the log now, in bytes."""


def read(record: Record, job: str, rank: int, begin: int) -> Piece:
    """Return a piece of what a rank has printed in a job.

    Parameters
    ----------
    record, job, rank
        The file of state, the job's id and the rank.
    begin
        The first byte; counted from the end if it is negative.

    Raises
    ------
    UsageError
        If there is no such log.
    """
    found = next((each for each in record.jobs if each.id == job), None)
    if found is None or rank not in {each.rank for each in found.ranks}:
        raise UsageError(f"rank {rank} of job {job} is not known any more")
    first, last = found.parts.get(rank, (0, None))
    try:
        with open_own(_path(found, rank)) as file:
            status = os.fstat(file.fileno())
            size = (status.st_size if last is None else min(last, status.st_size)) - first
            begin = max(0, size + begin) if begin < 0 else min(begin, max(size, 0))
            file.seek(first + begin)
            data = file.read(max(0, min(MOST_BYTES, size - begin)))
    except FileNotFoundError:
        return Piece("", 0, 0, 0)
    except (OSError, ValueError) as err:
        raise UsageError(f"this log cannot be read: {err}") from err
    if begin + len(data) < size or last is None:
        data = data[: _whole(data)]
    return Piece(data.decode("utf-8", errors="replace"), begin, begin + len(data), max(0, size))


def _path(job: JobRecord, rank: int) -> Path:
    return Path(job.folder) / f"rank{rank}.log"


def _whole(data: bytes) -> int:
    """Return the number of bytes before an incomplete last character, all if it is complete."""
    for back in range(1, min(LONGEST_CHARACTER, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:  # noqa: PLR2004  # UTF-8: one byte
            return len(data)
        if byte >= 0xC0:  # noqa: PLR2004  # the first byte of several
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4  # noqa: PLR2004
            return len(data) if back >= length else len(data) - back
    return len(data)
