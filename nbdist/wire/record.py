"""What a process of ours shows of itself to whoever looks from outside: one small file of state.

The hub of a kernel, and the keeper of a detached job, write one each into Jupyter's runtime folder.
The sidebar's server reads them; nothing is asked of a kernel, which may be busy, and no code of the
user's is run. Nothing of another user is read, nor what others could have written.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
from jupyter_core.paths import jupyter_runtime_dir


VERSION = 1
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class RankRecord(msgspec.Struct, omit_defaults=True):
    """One rank."""

    rank: int
    state: str
    """starting, idle, busy or dead."""
    words: str
    """What it does, as a person would say it."""
    host: str = ""
    pid: int = 0
    device: str = ""
    line: int | None = None
    """The cell's line it is at."""
    cpu: float | None = None
    """Percent of one core."""
    memory: int | None = None
    """Bytes."""
    gpu: float | None = None
    """Percent."""
    gpu_memory: int | None = None
    """Bytes."""


class BarRecord(msgspec.Struct, omit_defaults=True):
    """One of rank zero's loops."""

    label: str
    done: int
    total: int | None = None
    rate: float | None = None
    """Iterations a second."""
    samples: float | None = None
    """Samples a second of all ranks."""
    left: float | None = None
    """Seconds to its end."""


class JobRecord(msgspec.Struct, omit_defaults=True):
    """One job."""

    id: str
    number: int
    """The cell's execution count."""
    state: str
    ranks: list[RankRecord]
    """Of a job on a cluster, what they do in it."""
    first_line: str
    launcher: str
    cluster: str
    """The cluster it runs on, '' if its ranks are its own."""
    created: float
    began: float | None = None
    seconds: float | None = None
    told: str = ""
    """How it failed, in a line."""
    reports: list[str] = []
    """Hangs, restarts and countdowns, as they stand."""
    straggler: str = ""
    bars: list[BarRecord] = []
    metrics: dict[str, float | None] = {}
    """The last value of the first metrics; None where it is not finite."""


class ClusterRecord(msgspec.Struct, omit_defaults=True):
    """One cluster."""

    id: str
    np: int
    backend: str
    launcher: str
    state: str
    """running or lost."""
    created: float
    ranks: list[RankRecord] = []


class Record(msgspec.Struct, omit_defaults=True):
    """One process of ours, and all it has."""

    id: str
    pid: int
    created: float
    """Start time of the process, which with the pid names it beyond doubt."""
    host: str
    kernel: str = ""
    """The kernel's id, '' where it is none of a Jupyter server's."""
    notebook: str = ""
    """The notebook's path, as the server has told the kernel."""
    control: str = ""
    """Path of the socket that takes commands."""
    clusters: list[ClusterRecord] = []
    jobs: list[JobRecord] = []
    version: int = VERSION


class Unreadable(msgspec.Struct):
    """A file of state that is broken, of another version, or not to be trusted."""

    id: str
    why: str


def folder() -> Path:
    """Return where the files of state lie; it may not be there."""
    return Path(jupyter_runtime_dir()) / "nbdist"


def write(path: Path, record: Record) -> None:
    """Write a file of state, whole or not at all, for its owner's eyes."""
    part = path.with_suffix(".part")
    with open(part, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(msgspec.json.encode(record))
    part.replace(path)


def read_all() -> tuple[list[Record], list[Unreadable]]:
    """Return what all processes of this user show of themselves, and what cannot be read."""
    found, unreadable = [], []
    try:
        paths = sorted(folder().glob("*.json"))
    except OSError:
        return [], []
    for path in paths:
        try:
            found.append(read(path))
        except FileNotFoundError:
            continue  # it has ended just now
        except (OSError, ValueError, msgspec.MsgspecError) as err:
            unreadable.append(Unreadable(path.stem, str(err)))
    return found, unreadable


def read(path: Path) -> Record:
    """Return what one process shows of itself.

    Raises
    ------
    ValueError
        If it is not this user's own, or of another version.
    OSError, msgspec.MsgspecError
        If it cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid() or status.st_mode & OPEN_TO_OTHERS:
            msg = f"{path.name} belongs to somebody else, or others may write it"
            raise ValueError(msg)
        data = file.read()
    version = msgspec.json.decode(data, type=dict[str, Any]).get("version", VERSION)
    if version != VERSION:
        msg = f"it was written by another version of nbdist (state {version}, here {VERSION})"
        raise ValueError(msg)
    return msgspec.json.decode(data, type=Record)
