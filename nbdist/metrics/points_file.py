"""The file format of logged points: each rank appends frames of columns to its own file.

A frame contains the points logged since the last frame, in columns, so that a million points are
read in a few thousand steps. A file can be read at any time: readers ignore an incomplete frame at
its end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_BYTES = 4
"""The size of the length that precedes each frame."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """The values of one name, in the order of logging; numbers in native byte order."""

    name: str
    steps: bytes
    """int64."""
    times: bytes
    """float64, `time.time()`."""
    values: bytes
    """float64."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """The points that a rank has logged within a fraction of a second."""

    start: int
    """How often the job had been restarted by then."""
    columns: list[Column]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def points_file(folder: Path | str, job: str, rank: int) -> Path:
    """Return the path of a rank's logged points in a job's folder."""
    return Path(folder) / f"metrics{job}.{rank}"


def resources_file(folder: Path | str, job: str, rank: int) -> Path:
    """Return the path of a rank's use of resources in a job's folder, in the same format."""
    return Path(folder) / f"resources{job}.{rank}"


def open_to_append(path: Path) -> int:
    """Open a rank's file as a private file; return the file descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    _cut(file)
    return file


def _cut(file: int) -> None:
    """Remove an incomplete frame of a killed process, which would corrupt the frames after it."""
    at, size = 0, os.fstat(file).st_size
    while at + HEAD_BYTES <= size:
        end = at + HEAD_BYTES + int.from_bytes(os.pread(file, HEAD_BYTES, at), "little")
        if end > size:
            break
        at = end
    if at < size:
        os.ftruncate(file, at)


def append(file: int, frame: Frame) -> None:
    """Add a frame to an open file."""
    data = memoryview(framed(frame))
    while data:  # a signal may interrupt a write
        data = data[os.write(file, data) :]


def framed(frame: Frame) -> bytes:
    """Encode a frame with its length in front."""
    data = _encode(frame)
    return len(data).to_bytes(HEAD_BYTES, "little") + data


def whole_frames(data: bytes) -> Iterator[tuple[int, Frame]]:
    """Yield the complete frames in `data`, each with its end.

    Raises
    ------
    msgspec.MsgspecError
        If the data are not in this format.
    """
    at = 0
    while len(data) - at >= HEAD_BYTES:
        end = at + HEAD_BYTES + int.from_bytes(data[at : at + HEAD_BYTES], "little")
        if end > len(data):
            return
        yield end, _decode(data[at + HEAD_BYTES : end])
        at = end


def stored_frames(path: Path) -> Iterator[Frame]:
    """Yield the complete frames of a file, one at a time; none if the file does not exist."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while len(head := file.read(HEAD_BYTES)) == HEAD_BYTES:
            length = int.from_bytes(head, "little")
            if len(data := file.read(length)) < length:
                return
            yield _decode(data)
