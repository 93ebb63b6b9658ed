"""What a rank logs, as it lies on disk: frames that are only ever added to its file.

A frame holds what was logged since the one before, in columns, so that a million points are read
in a few thousand steps. A reader may come at any time: a frame that is not all there yet waits.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_BYTES = 4
"""The length of the frame, before each."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """Values of one name, in the order in which they were logged; numbers in native order."""

    name: str
    steps: bytes
    """int64."""
    times: bytes
    """float64, `time.time()`."""
    values: bytes
    """float64."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """What a rank has logged within a fraction of a second."""

    start: int
    """How often the job had been started anew by then."""
    columns: list[Column]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def points_file(folder: Path | str, job: str, rank: int) -> Path:
    """Return where a rank's points of a job lie."""
    return Path(folder) / f"metrics{job}.{rank}"


def resources_file(folder: Path | str, job: str, rank: int) -> Path:
    """Return where it lies what a rank has taken of its machine in a job, in the same frames."""
    return Path(folder) / f"resources{job}.{rank}"


def open_to_append(path: Path) -> int:
    """Open a rank's file, for its owner's eyes, and return its descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    _cut(file)
    return file


def _cut(file: int) -> None:
    """Take away the frame that a killed process has begun: it would swallow what follows."""
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
    while data:  # a signal may cut it short
        data = data[os.write(file, data) :]


def framed(frame: Frame) -> bytes:
    """Return a frame as it is added to a file."""
    data = _encode(frame)
    return len(data).to_bytes(HEAD_BYTES, "little") + data


def whole_frames(data: bytes) -> Iterator[tuple[int, Frame]]:
    """Return the frames that are whole, each with where it ends.

    Raises
    ------
    msgspec.MsgspecError
        If this is no such file.
    """
    at = 0
    while len(data) - at >= HEAD_BYTES:
        end = at + HEAD_BYTES + int.from_bytes(data[at : at + HEAD_BYTES], "little")
        if end > len(data):
            return
        yield end, _decode(data[at + HEAD_BYTES : end])
        at = end


def stored_frames(path: Path) -> Iterator[Frame]:
    """Return the whole frames of a file, which is not held in memory; none if it is not there."""
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
