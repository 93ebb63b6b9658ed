"""Removes what clusters left on disk: abandoned folders and old logs.

The folder that holds them may be shared by hosts and containers. A process removes files of a
process that it cannot see only after days of silence: see `nbdist.machine.process_lives`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

import msgspec

from nbdist.machine import process_lives
from nbdist.machine.operating_system import write_whole
from nbdist.machine.process_lives import FORGOTTEN_SECONDS, Place, started

OWNER = "owner.json"
NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
"""How folders of logs are called."""
NOBODY = -1
UNSIGNED_SECONDS = 600.0
"""A folder is signed as soon as it is made; one older than this and unsigned is nobody's.

Long, since the clocks of two hosts may differ.
"""


class Owner(msgspec.Struct, frozen=True):
    """Whose a cluster's folder is: a process, named beyond doubt, and its temp folder."""

    pid: int
    created: float
    temp: str = ""
    place: Place = Place()


_decode = msgspec.json.Decoder(Owner).decode  # any thread; see `nbdist.rank.script_program`
_signed: set[Path] = set()
"""Folders of this process. Threads sign; the hub's thread, or a keeper's, touches."""


def sign(folder: Path, temp: str = "") -> None:
    """Write into a cluster's folder that it is this process's; `beat` shows that it still is."""
    _write(folder, Owner(os.getpid(), started(os.getpid()), temp, process_lives.here()))
    _signed.add(folder)


def beat() -> None:
    """Touch the signatures of this process, for those who cannot see it; to be called regularly."""
    for folder in list(_signed):
        try:
            whose = owner(folder)
            if (whose.pid, whose.place) == (os.getpid(), process_lives.here()):
                os.utime(folder / OWNER)
                continue
        except FileNotFoundError:
            pass  # the folder has been removed
        except (OSError, msgspec.MsgspecError):
            continue  # the file system may be back the next time
        _signed.discard(folder)  # it is another's now: of a job's keeper


def owner(folder: Path) -> Owner:
    """Return whose a folder is.

    Raises
    ------
    OSError, msgspec.MsgspecError
        If that cannot be read.
    """
    return _decode((folder / OWNER).read_bytes())


def owned(folder: Path, patience: float) -> bool:
    """Whether the process that has signed a folder lives; for `patience` see `lives.lives`.

    Raises
    ------
    OSError, msgspec.MsgspecError
        If that cannot be read.
    """
    whose = owner(folder)
    if whose.pid == NOBODY:
        return False
    return process_lives.lives(whose.pid, whose.created, whose.place, folder / OWNER, patience)


def disown(folder: Path) -> None:
    """Write into a folder of this process's that it is nobody's any more."""
    _signed.discard(folder)
    if (folder / OWNER).exists():  # else somebody has cleared it away by hand
        _write(folder, Owner(NOBODY, 0.0))


def _write(folder: Path, owner: Owner) -> None:
    # Who reads it meanwhile must not take the folder for nobody's.
    write_whole(folder / OWNER, msgspec.json.encode(owner))


def clear(clusters: Path) -> None:
    """Remove the folders of clusters whose kernel and warm process were both killed."""
    for folder in clusters.iterdir():
        # A signature that cannot be read is left alone: it may be a newer version's.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if not (folder / OWNER).exists():
                if _is_nobodys(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            if not owned(folder, FORGOTTEN_SECONDS):
                temp = owner(folder).temp
                if temp:
                    shutil.rmtree(temp, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)


def _is_nobodys(folder: Path) -> bool:
    """Whether a folder without a signature will not get one any more."""
    return time.time() - folder.stat().st_mtime > UNSIGNED_SECONDS


def clear_logs(logs: Path, days: float, gigabytes: float) -> None:
    """Remove logs that are too old, and the oldest while all take too much; none in use."""
    folders, sizes = [], {}
    for path in logs.iterdir():
        with contextlib.suppress(OSError):  # another kernel has cleared it away
            found = [file.stat() for file in (path, *path.rglob("*"))]
            sizes[path] = sum(file.st_size for file in found)
            folders.append((max(file.st_mtime for file in found), path))
    too_much = sum(sizes.values()) - gigabytes * 1e9
    for changed, path in sorted(folders):
        if too_much <= 0 and time.time() - changed < days * 86400:
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if (path / OWNER).exists():
                unused = not owned(path, FORGOTTEN_SECONDS)
            else:  # one of ours that its keeper left halfway, or something of the user's
                unused = NAME.fullmatch(path.name) is not None and _is_nobodys(path)
            if unused:
                shutil.rmtree(path, ignore_errors=True)
                too_much -= sizes[path]
