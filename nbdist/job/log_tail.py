"""Reads a rank's log from a job's beginning while it grows."""

from __future__ import annotations

import codecs
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 1 << 16
"""Bytes read at a time."""
NOISE = re.compile(
    r"(?m)^(\[[WE]\d+ .*|\[rank\d+\]:\[[WE].*|Exception raised from .*|frame #\d+: .*)(\n|\Z)"
)
"""Torch's C++ messages about a cut connection: long and useless."""


class Tail:
    """Reads one rank's log from where its job begins. Hub's thread."""

    def __init__(self, path: Path, at: int) -> None:
        self._path = path
        self._file = -1
        self.at = at
        """The position in the log read so far."""
        self.quiet = False
        """Whether we have cut the rank's connections; torch's messages then stay in the log
        only."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, end: int | None = None) -> str | None:
        """Return new text, at most a chunk and not beyond `end`; None if there is none."""
        if end is not None and end < self.at and self.size() < self.at:
            self.at = 0  # the log was truncated to free space
        size = CHUNK if end is None else min(CHUNK, end - self.at)
        data = self._read(size) if size > 0 else b""
        if not data:
            return None
        self.at += len(data)
        return self._clean(self._decoder.decode(data))

    def size(self) -> int:
        """Return the present size of the log."""
        return os.fstat(self._file).st_size if self._opened() else 0

    def close(self) -> str:
        """Close the log; return the rest of an incomplete character."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        return self._clean(self._decoder.decode(b"", final=True))

    def _clean(self, text: str) -> str:
        return NOISE.sub("", text) if self.quiet else text

    def _read(self, size: int) -> bytes:
        return os.pread(self._file, size, self.at) if self._opened() else b""

    def _opened(self) -> bool:
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        return True
