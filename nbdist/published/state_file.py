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
"""How long a kernel that has disappeared is shown."""
KERNEL: Final = "kernel"
KEEPER: Final = "keeper"
ShownState = Literal[RankState, JobState, "ended"]
"""Of a rank; one that belongs to a job has the job's state where no rank's fits."""
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
BROKEN = (OSError, ValueError, RecursionError, msgspec.MsgspecError)
"""The errors of `read`."""


class RankRecord(msgspec.Struct, omit_defaults=True):
    """A rank."""

    rank: int
    state: ShownState
    words: str
    """A short description of what it is doing."""
    host: str = ""
    pid: int = 0
    device: str = ""
    line: int | None = None
    """The cell's line that it runs."""
    cpu: float | None = None
    """Percent of one core."""
    memory: int | None = None
    """Bytes."""
    gpu: float | None = None
    """Percent."""
    gpu_memory: int | None = None
    """Bytes."""
    step: float | None = None
    """Seconds a step, as in `nbdist.job.rows.RankRow`."""
    created: float = 0.0
    """The process's start time, 0 if unknown. Not sent to the page."""


class BarRecord(msgspec.Struct, omit_defaults=True):
    """A loop of rank 0."""

    label: str
    done: int
    total: int | None = None
    rate: float | None = None
    """Iterations a second."""
    samples: float | None = None
    """Samples a second of all ranks."""
    left: float | None = None
    """The remaining seconds."""
    still: float | None = None
    """Seconds since the last step, if this is unusually long."""


class JobRecord(msgspec.Struct, omit_defaults=True):
    """A job."""

    id: str
    number: int
    """The cell's execution count."""
    state: JobState
    ranks: list[RankRecord]
    """The job's ranks, with what they do in this job."""
    first_line: str
    launcher: str
    cluster: str
    """The id of its cluster, '' if it has its own ranks."""
    created: float
    began: float | None = None
    seconds: float | None = None
    told: str = ""
    """One line about how it failed."""
    reports: list[str] = []
    """The present notices about hangs, restarts and countdowns."""
    straggler: str = ""
    bars: list[BarRecord] = []
    metrics: dict[str, float | None] = {}
    """The last values of the first metrics; None if not finite."""
    detached: bool = False
    folder: str = ""
    """The folder of its logs. Not sent to the page."""
    parts: dict[int, tuple[int, int | None]] = {}
    """The beginning and end of each rank's output in its log. Not sent to the page."""


class ClusterRecord(msgspec.Struct, omit_defaults=True):
    """A cluster."""

    id: str
    np: int
    backend: str
    launcher: str
    state: Literal["running", "lost"]
    created: float
    root: tuple[int, float] = (0, 0.0)
    """The pid and start time of the process with which all ranks end. Not sent to the page."""
    ranks: list[RankRecord] = []
    folder: str = ""
    """The folder of its files. Not sent to the page."""


class Record(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A kernel or keeper, with its clusters and jobs."""

    id: str = ""
    """The name of the file."""
    pid: int
    created: float
    """The process's start time, which with the pid identifies it."""
    host: str
    kind: Literal["kernel", "keeper"] = KERNEL
    """A kernel, or the keeper of a detached job."""
    kernel: str = ""
    """The kernel's id, '' if no Jupyter server has started it."""
    notebook: str = ""
    """The notebook's path, which the server has passed to the kernel."""
    control: str = ""
    """The path of the socket for commands."""
    clusters: list[ClusterRecord] = []
    jobs: list[JobRecord] = []
    place: Place = Place()
    """Where its pids are valid. Not sent to the page."""
    version: int = VERSION

    def alive(self, path: Path) -> bool:
        """Whether the process is still running, as far as this can be known here."""
        with contextlib.suppress(OSError):
            return process_lives.lives(self.pid, self.created, self.place, path)
        return False


def of_this_process(kind: Literal["kernel", "keeper"], **parts: Any) -> Record:
    """Return a record of this process."""
    pid, created = _me()
    return Record(
        pid=pid, created=created, host=process_lives.here().host, place=process_lives.here(),
        kind=kind, notebook=os.environ.get("JPY_SESSION_NAME", ""), **parts,
    )  # fmt: skip


@functools.cache
def _me() -> tuple[int, float]:
    return os.getpid(), started(os.getpid())


class Unreadable(msgspec.Struct):
    """A state file that is broken, of another version, or not trusted."""

    id: str
    why: str


def folder() -> Path:
    """Return the folder of the state files, which may not exist."""
    return Path(jupyter_runtime_dir()) / "nbdist"


def encode(what: Any) -> bytes:
    """Encode a record or another published object as JSON."""
    try:
        return msgspec.json.encode(what)
    except UnicodeEncodeError:  # names of folders and texts of cells may contain surrogates
        return msgspec.json.encode(_as_text(msgspec.to_builtins(what, str_keys=True)))


def _as_text(value: Any) -> Any:
    """Replace characters that cannot be encoded by question marks."""
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
    """Write a state file."""
    write_whole(path, encode(record))


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # opening a pipe would block


def open_own(path: Path) -> IO[bytes]:
    """Open a file for reading, if it is a regular file of this user and not a symbolic link.

    Raises
    ------
    ValueError
        If it is not.
    OSError
        If it cannot be opened.
    """
    file = open(path, "rb", opener=_no_link)  # noqa: SIM115  # who asks closes it
    status = os.fstat(file.fileno())
    why = ""
    if not stat.S_ISREG(status.st_mode):
        why = "is no plain file"
    elif status.st_uid != os.getuid():
        why = "belongs to another user"
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
    """Return the record in a state file.

    Raises
    ------
    ValueError
        If the file is not this user's, or of another version.
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
    """Whether an ended process need not be shown any more."""
    if record.kind == KEEPER:  # shown while the job's folder exists
        return not any(Path(job.folder).exists() for job in record.jobs)
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime > GONE_SECONDS
    return False


def sweep() -> None:
    """Remove outdated state files."""
    for path in folder().glob("*.sock"):
        with contextlib.suppress(OSError):
            # No process of this host listens, but one of another host may, which touches its
            # socket.
            if not path.with_suffix(".json").exists() and _is_forgotten(path) and _is_deaf(path):
                path.unlink()
    for path in folder().glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > GONE_SECONDS:
                path.unlink()
    for path in folder().glob("*.json"):
        with contextlib.suppress(*BROKEN):  # another user's file
            record = read(path)
            if not record.alive(path) and outdated(record, path):
                remove_left(path, record)


def _is_forgotten(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > FORGOTTEN_SECONDS


def _is_deaf(path: Path) -> bool:
    """Whether no process listens at a socket."""
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
    """Remove the files of an ended process.

    The socket of a process that cannot be checked from here stays: if the process is alive, it
    writes its state file again.
    """
    seen = record is not None and record.place.seen_from_here
    remove(path, record.control if record is not None and seen else "")
