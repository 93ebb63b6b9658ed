"""The last pulse of each present rank of a detached job: a file that the keeper rewrites."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from nbdist.detached.job_folders import write as write_file
from nbdist.wire.messages import Pulse

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.job.job import Job

FILE = "pulses.json"


class Heard(msgspec.Struct, frozen=True):
    """What was heard of the ranks."""

    pulses: dict[int, Pulse]
    """The last report of each rank."""
    gone: set[int]
    """The ranks without which the job goes on."""


# Any thread; see `nbdist.rank.script_program`.
_decode = msgspec.json.Decoder(Heard).decode


def write(folder: Path, heard: Heard) -> None:
    """Write what was heard last. For the keeper."""
    write_file(folder, FILE, heard)


def show(folder: Path, job: Job) -> None:
    """Set in a job what was heard last, if it can be read. Any thread."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        heard = _decode((folder / FILE).read_bytes())
        job.pulses, job.gone = heard.pulses, heard.gone
