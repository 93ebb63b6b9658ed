"""The file of state, which the sidebar reads: its records, how it is written and read.

The hub of a kernel, and the keeper of a detached job, write one each into Jupyter's runtime folder.
The sidebar's server reads them; nothing is asked of a kernel, which may be busy, and no code of the
user's is run. Nothing of another user is read, nor what others could have written.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
import time
from pathlib import Path
from typing import IO, Any, Final, Literal

import msgspec
from jupyter_core.paths import jupyter_runtime_dir

from nbdist.job.states import JobState, RankState
from nbdist.machine import process_lives
from nbdist.machine.operating_system import write_whole
from nbdist.machine.process_lives import FORGOTTEN_SECONDS, Place, started

VERSION = 1
MOST_BYTES = 1 << 26
GONE_SECONDS = 600.0
"""A kernel that vanished is shown for so long."""
KERNEL: Final = "kernel"
KEEPER: Final = "keeper"
ShownState = Literal[RankState, JobState, "ended"]
"""Of a rank; one that belongs to a job has the job's state where no rank's fits."""
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
BROKEN = (OSError, ValueError, RecursionError, msgspec.MsgspecError)
"""What `read` may raise."""


class RankRecord(msgspec.Struct, omit_defaults=True):
    """One rank."""

    rank: int
    state: ShownState
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
    step: float | None = None
    """Seconds a step, as `nbdist.job.rows.RankRow` has it."""
    created: float = 0.0
    """Start time of the process, 0 where it is not known. The page is not told."""


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
    still: float | None = None
    """Seconds since it ended a step, if that is far longer than one takes."""


class JobRecord(msgspec.Struct, omit_defaults=True):
    """One job."""

    id: str
    number: int
    """The cell's execution count."""
    state: JobState
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
    detached: bool = False
    folder: str = ""
    """Where its logs lie. The page is not told."""
    parts: dict[int, tuple[int, int | None]] = {}
    """Where each rank's output begins and ends in its log. The page is not told."""


class ClusterRecord(msgspec.Struct, omit_defaults=True):
    """One cluster."""

    id: str
    np: int
    backend: str
    launcher: str
    state: Literal["running", "lost"]
    created: float
    root: tuple[int, float] = (0, 0.0)
    """Pid and start time of the process that all ranks end with. The page is not told."""
    ranks: list[RankRecord] = []
    folder: str = ""
    """Where its files lie. The page is not told."""


class Record(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One process of ours, and all it has."""

    id: str = ""
    """The file's name."""
    pid: int
    created: float
    """Start time of the process, which with the pid names it beyond doubt."""
    host: str
    kind: Literal["kernel", "keeper"] = KERNEL
    """A kernel, or the keeper of a detached job."""
    kernel: str = ""
    """The kernel's id, '' where it is none of a Jupyter server's."""
    notebook: str = ""
    """The notebook's path, as the server has told the kernel."""
    control: str = ""
    """Path of the socket that takes commands."""
    clusters: list[ClusterRecord] = []
    jobs: list[JobRecord] = []
    place: Place = Place()
    """Where its pids can be looked up. The page is not told."""
    version: int = VERSION

    def alive(self, path: Path) -> bool:
        """Whether the process still runs, as far as that can be known here."""
        with contextlib.suppress(OSError):
            return process_lives.lives(self.pid, self.created, self.place, path)
        return False


def of_this_process(kind: Literal["kernel", "keeper"], **parts: Any) -> Record:
    """Return the record of the process that asks."""
    pid, created = _me()
    return Record(
        pid=pid, created=created, host=process_lives.here().host, place=process_lives.here(),
        kind=kind, notebook=os.environ.get("JPY_SESSION_NAME", ""), **parts,
    )  # fmt: skip


@functools.cache
def _me() -> tuple[int, float]:
    return os.getpid(), started(os.getpid())


class Unreadable(msgspec.Struct):
    """A file of state that is broken, of another version, or not to be trusted."""

    id: str
    why: str


def folder() -> Path:
    """Return where the files of state lie; it may not be there."""
    return Path(jupyter_runtime_dir()) / "nbdist"


def encode(what: Any) -> bytes:
    """Return a record, or another thing that others are told, as JSON."""
    try:
        return msgspec.json.encode(what)
    except UnicodeEncodeError:  # a folder's name need not be text, nor what a cell holds
        return msgspec.json.encode(_as_text(msgspec.to_builtins(what, str_keys=True)))


def _as_text(value: Any) -> Any:
    """Put question marks in the place of what is no text."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():
            return [_as_text(each) for each in value]
        case dict():
            return {_as_text(key): _as_text(each) for key, each in value.items()}
        case _:
            return value


def write(path: Path, record: Record) -> None:
    """Write a file of state."""
    write_whole(path, encode(record))


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would be waited for


def open_own(path: Path) -> IO[bytes]:
    """Open a file to read it; a plain one of this user's, not one that a link leads to.

    Raises
    ------
    ValueError
        If it is none.
    OSError
        If it cannot be opened.
    """
    file = open(path, "rb", opener=_no_link)  # noqa: SIM115  # who asks closes it
    status = os.fstat(file.fileno())
    why = ""
    if not stat.S_ISREG(status.st_mode):
        why = "is no plain file"
    elif status.st_uid != os.getuid():
        why = "belongs to somebody else"
    if why:
        file.close()
        raise ValueError(f"{path.name} {why}")
    return file


class _Version(msgspec.Struct):
    version: int = VERSION


# Any thread; see `nbdist.rank.script_program`.
_decode_version = msgspec.json.Decoder(_Version).decode
_decode = msgspec.json.Decoder(Record).decode


def read(path: Path) -> Record:
    """Return what one process shows of itself.

    Raises
    ------
    ValueError
        If it is not this user's own, or of another version.
    OSError, RecursionError, msgspec.MsgspecError
        If it cannot be read.
    """
    with open_own(path) as file:
        if os.fstat(file.fileno()).st_mode & OPEN_TO_OTHERS:
            msg = f"{path.name}: others may read or write it"
            raise ValueError(msg)
        data = file.read(MOST_BYTES)
    version = _decode_version(data).version
    if version != VERSION:
        msg = f"it was written by another version of nbdist (state {version}, here {VERSION})"
        raise ValueError(msg)
    return _decode(data)


def outdated(record: Record, path: Path) -> bool:
    """Whether a process that has gone need not be shown any more."""
    if record.kind == KEEPER:  # its end is seen as long as its job's folder is there
        return not any(Path(job.folder).exists() for job in record.jobs)
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime > GONE_SECONDS
    return False


def sweep() -> None:
    """Remove what nobody needs to see any more."""
    for path in folder().glob("*.sock"):
        with contextlib.suppress(OSError):
            # Nobody of this host may listen, but of another one: that touches its socket, too.
            if not path.with_suffix(".json").exists() and _is_forgotten(path) and _is_deaf(path):
                path.unlink()
    for path in folder().glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > GONE_SECONDS:
                path.unlink()
    for path in folder().glob("*.json"):
        with contextlib.suppress(*BROKEN):  # not ours to remove
            record = read(path)
            if not record.alive(path) and outdated(record, path):
                remove_left(path, record)


def _is_forgotten(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > FORGOTTEN_SECONDS


def _is_deaf(path: Path) -> bool:
    """Whether nobody listens at a socket any more."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def remove(path: Path, control: str) -> None:
    """Remove a file of state and its socket."""
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.part").unlink(missing_ok=True)
    if control:
        listening = Path(control)
        listening.unlink(missing_ok=True)
        if listening.parent != path.parent:
            with contextlib.suppress(OSError):
                listening.parent.rmdir()


def remove_left(path: Path, record: Record | None) -> None:
    """Remove what a process has left.

    The socket of one that cannot be seen from here stays: if it lives it writes its file anew.
    """
    seen = record is not None and record.place.seen_from_here
    remove(path, record.control if record is not None and seen else "")
