"""The folders of detached jobs on disk: who keeps each job, its state, and how to stop it.

Any process of the same user may read this, on any host that shares the folder. The job's keeper
writes it; others only ask it to stop, or note that they have taken what it returns. Any thread.

The Jupyter server's process imports this module. Other files of such a folder, whose content needs
launchers or the wire, have modules of their own: `keeper_order`, `pulses_file`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.job.states import ENDED, JobState, stop_told
from nbdist.machine import leftovers
from nbdist.machine.operating_system import write_whole
from nbdist.machine.process_lives import FORGOTTEN_SECONDS, SILENT_SECONDS

if TYPE_CHECKING:
    from nbdist.job.states import Stop
    from nbdist.settings import Settings

STATE, STOP, TAKEN = "job.json", "stop", "taken"
VERSION = 1


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a detached job, on disk."""

    id: str
    code: str
    number: int
    """The cell's execution count."""
    lines: int
    """Lines of the notebook's cell before `code`."""
    np: int
    launcher: str
    backend: str
    output: str
    returns: list[str]
    host: str = msgspec.field(default_factory=socket.gethostname)
    """The host of its keeper."""
    created: float = msgspec.field(default_factory=time.time)
    began: float | None = None
    seconds: float | None = None
    state: JobState = "starting"
    told: str = ""
    """One line about how it failed."""
    version: int = VERSION

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in ENDED


# Any thread; see `nbdist.rank.script_program`.
_decode = msgspec.json.Decoder(Kept).decode


class Unreadable(msgspec.Struct):
    """A folder with a job of another version, or with broken files."""

    folder: Path
    why: str


def id_of(folder: Path) -> str:
    """Return the id of the job in a folder."""
    return folder.name.rpartition("-")[2]


def write(folder: Path, name: str, content: Any) -> None:
    """Write a private file of a job, completely or not at all."""
    write_whole(folder / name, msgspec.json.encode(content))


def read(folder: Path) -> Kept:
    """Return the state of the job in a folder.

    Raises
    ------
    OSError, msgspec.MsgspecError
        If the file cannot be read.
    """
    return _decode((folder / STATE).read_bytes())


def all_kept(settings: Settings) -> tuple[dict[Path, Kept], list[Unreadable]]:
    """Return all detached jobs by folder, the oldest first, and unreadable folders."""
    found: dict[Path, Kept] = {}
    unreadable = []
    for path in (settings.home / "logs").glob(f"*/{STATE}"):
        try:
            if path.stat().st_uid != os.getuid():
                continue  # other users' folders are not trusted
            found[path.parent] = read(path.parent)
        except FileNotFoundError:
            continue  # just removed
        except (OSError, msgspec.MsgspecError) as err:
            unreadable.append(Unreadable(path.parent, str(err)))
    return dict(sorted(found.items(), key=lambda item: item[1].created)), unreadable


def lost(folder: Path, kept: Kept, patience: float = SILENT_SECONDS) -> bool:
    """Whether the keeper of a job that has not ended is gone; `patience` as in `lives.lives`."""
    if kept.ended:
        return False
    try:
        return not leftovers.owned(folder, patience)
    except (OSError, msgspec.MsgspecError):
        return True


def state_of(folder: Path, kept: Kept) -> str:
    """Return a job's state in words."""
    if lost(folder, kept):
        return "lost: its keeper process has died"
    return kept.state


def stop(folder: Path, why: Stop) -> None:
    """Ask a job's keeper to stop the job, or to speed up the stop."""
    write(folder, STOP, why.text)


def asked_to_stop(folder: Path) -> Stop | None:
    """Return why a job is to be stopped, None if it is not; keeper's own."""
    path = folder / STOP
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        text = msgspec.json.decode(path.read_bytes(), type=str)
        path.unlink()
        return stop_told(text)
    return None


def note_taken(folder: Path) -> None:
    """Note that a notebook has what the job in a folder returns."""
    with contextlib.suppress(FileNotFoundError):  # the folder was removed meanwhile
        (folder / TAKEN).touch()


def awaits_taking(folder: Path, kept: Kept) -> bool:
    """Whether a job has returned values that no notebook has taken."""
    if kept.state != "done" or (folder / TAKEN).exists():
        return False
    return any(folder.glob("returned*"))


def clean(settings: Settings, only: Path | None = None) -> tuple[list[Kept], list[Kept]]:
    """Remove the folders of all ended or lost jobs, or only this one.

    A job whose keeper cannot be checked from here is removed only by name, and so is one that
    has returned what nobody has taken.

    Returns
    -------
    tuple
        The jobs removed, and those that stay for what they have returned.
    """
    removed, stay = [], []
    patience = FORGOTTEN_SECONDS if only is None else SILENT_SECONDS
    for folder, kept in all_kept(settings)[0].items():
        if only in (None, folder) and (lost(folder, kept, patience) or _over(folder, kept)):
            if only is None and awaits_taking(folder, kept):
                stay.append(kept)
                continue
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(kept)
    return removed, stay


def leaving(settings: Settings, only: Path | None = None) -> bool:
    """Whether a keeper has written its job's end, but has not ended itself yet."""
    return any(
        kept.ended and not _over(folder, kept)
        for folder, kept in all_kept(settings)[0].items()
        if only in (None, folder)
    )


def may_go(folder: Path) -> bool:
    """Whether the job in a folder has certainly ended or was lost, and nobody waits for values."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        kept = read(folder)
        over = lost(folder, kept, FORGOTTEN_SECONDS) or _over(folder, kept)
        return over and not awaits_taking(folder, kept)
    return False


def _over(folder: Path, kept: Kept) -> bool:
    """Whether a job and its keeper have ended."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return kept.ended and not leftovers.owned(folder, SILENT_SECONDS)
    return kept.ended
