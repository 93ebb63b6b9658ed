"""Hands memory from one process to others of the host: written once, private to each.

The sender writes a block and holds it. A receiver maps the block copy-on-write: memory is copied
only where the receiver writes, and no process sees another's writes. A block has no name in any
folder: it disappears with the last process that holds it, also if that process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbdist.errors import NbdistError
from nbdist.machine.amounts import in_bytes
from nbdist.wire.parcel_format import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNED = 64
"""Bytes; vector instructions work best on data aligned so."""
IOV = 512
"""The most buffers written by one call."""
SHORT = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""Errors that mean that no memory or disk space is left."""
CGROUP = Path("/sys/fs/cgroup")


class Blocks:
    """The sender's end of some blocks.

    Parameters
    ----------
    folder
        A folder for the blocks if processes of other hosts, which copy them, get them, too.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._handles: list[int] = []
        self._files: list[str] = []

    def write(self, buffers: Sequence[memoryview]) -> Block:
        """Copy buffers into a new block."""
        handle, path = self._new()
        try:
            return _fill(handle, path, buffers)
        except OSError as err:
            size = in_bytes(sum(buffer.nbytes for buffer in buffers))
            raise NbdistError(f"{size} could not be put into shared memory: {err}") from err

    def _new(self) -> tuple[int, str]:
        if self._folder is None and hasattr(os, "memfd_create"):
            handle = os.memfd_create("nbdist", os.MFD_CLOEXEC)
            path = f"/proc/{os.getpid()}/fd/{handle}"
        else:
            handle, path = tempfile.mkstemp(prefix="nbdist-", dir=self._folder)
            self._files.append(path)
        self._handles.append(handle)
        return handle, path

    def close(self) -> None:
        """Release the blocks; a process that has mapped a block keeps it."""
        for handle in self._handles:
            os.close(handle)
        for path in self._files:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
        self._handles, self._files = [], []


def write_file(path: Path, buffers: Sequence[memoryview]) -> Block:
    """Write buffers to a private file, from which they can be attached; raise `OSError`."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return _fill(handle, str(path), buffers)
    finally:
        os.close(handle)


def _fill(handle: int, path: str, buffers: Sequence[memoryview]) -> Block:
    spans, at = [], 0
    pieces: list[memoryview] = []
    for buffer in buffers:
        gap = -at % ALIGNED
        if gap:
            pieces.append(memoryview(bytes(gap)))
        spans.append((at + gap, buffer.nbytes))
        pieces.append(buffer)
        at += gap + buffer.nbytes
    _write(handle, pieces)
    return Block(path, at, spans)


def _write(handle: int, pieces: list[memoryview]) -> None:
    at = 0
    for first in range(0, len(pieces), IOV):
        rest = [piece for piece in pieces[first : first + IOV] if piece.nbytes]
        while rest:
            done = os.pwritev(handle, rest, at)
            at += done
            while rest and done >= rest[0].nbytes:
                done -= rest.pop(0).nbytes
            if rest:
                rest[0] = rest[0][done:]


def attach(block: Block) -> list[memoryview]:
    """Map a block and return its buffers, writable and private to this process."""
    handle = os.open(block.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        private = mmap.MAP_PRIVATE
        mapped = mmap.mmap(handle, block.size, private, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(handle)
    whole = memoryview(mapped)
    return [whole[start : start + length] for start, length in block.spans]


def copy(block: Block) -> list[memoryview]:
    """Copy a block that another host has written and may soon remove; return its buffers."""
    check_room(block.size)
    whole = memoryview(bytearray(Path(block.path).read_bytes()))
    return [whole[start : start + length] for start, length in block.spans]


def check_room(size: int) -> None:
    """Raise `NbdistError` if so many bytes do not fit into memory now."""
    free = free_memory()
    if size > free:
        raise NbdistError(
            f"{in_bytes(size)} do not fit into memory: this machine has {in_bytes(free)} free"
        )


def free_memory() -> int:
    """Return the bytes available without swapping, within this container's limit."""
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # without a limit the file has the word "max"
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, limit - int((CGROUP / "memory.current").read_text()))
    return max(0, free)
