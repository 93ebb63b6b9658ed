"""The last pulse of each rank of a detached job: a file that the keeper rewrites."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from nbdist.detached.job_folders import write as write_file
from nbdist.wire.messages import Pulse

if TYPE_CHECKING:
    from pathlib import Path

FILE = "pulses.json"

# Any thread; see `nbdist.rank.script_program`.
_decode = msgspec.json.Decoder(dict[int, Pulse]).decode


def write(folder: Path, pulses: dict[int, Pulse]) -> None:
    """Write the ranks' last reports. For the keeper."""
    write_file(folder, FILE, pulses)


def read(folder: Path) -> dict[int, Pulse]:
    """Return the ranks' last reports; empty if they cannot be read. Any thread."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return _decode((folder / FILE).read_bytes())
    return {}
