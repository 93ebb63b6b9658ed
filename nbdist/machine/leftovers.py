"""Removes what clusters left on disk: abandoned folders and old logs.

Hosts and containers may share these folders. Files of a process that cannot be seen from here are
removed only after days without a sign of it: see `nbdist.machine.process_lives`.
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
"""The form of the names of log folders."""
NOBODY = -1
UNSIGNED_SECONDS = 600.0
"""A folder is signed when it is made; an older folder without a signature has no owner.

This is long because the clocks of two hosts may differ.
"""


class Owner(msgspec.Struct, frozen=True):
    """The owner of a cluster's folder: a process, uniquely named, and its temp folder."""

    pid: int
    created: float
    temp: str = ""
    place: Place = Place()


_decode = msgspec.json.Decoder(Owner).decode  # any thread; see `nbdist.rank.script_program`
_signed: set[Path] = set()
"""Folders of this process. Any thread signs; the hub's thread, or a keeper's, calls `beat`."""


def sign(folder: Path, temp: str = "") -> None:
    """Write into a cluster's folder that this process owns it; `beat` keeps the signature fresh."""
    _write(folder, Owner(os.getpid(), started(os.getpid()), temp, process_lives.here()))
    _signed.add(folder)


def beat() -> None:
    """Touch this process's signatures, for hosts that cannot see it; call this regularly."""
    for folder in list(_signed):
        try:
            whose = owner(folder)
            if (whose.pid, whose.place) == (os.getpid(), process_lives.here()):
                os.utime(folder / OWNER)
                continue
        except FileNotFoundError:
            pass  # the folder has been removed
        except (OSError, msgspec.MsgspecError):
            continue  # the file system may be back at the next call
        _signed.discard(folder)  # another process owns the folder now: a job's keeper


def owner(folder: Path) -> Owner:
    """Return the owner of a folder.

    Raises
    ------
    OSError, msgspec.MsgspecError
        If the signature cannot be read.
    """
    return _decode((folder / OWNER).read_bytes())


def owned(folder: Path, patience: float) -> bool:
    """Whether the owner of a folder is alive; for `patience` see `process_lives.lives`.

    Raises
    ------
    OSError, msgspec.MsgspecError
        If the signature cannot be read.
    """
    whose = owner(folder)
    if whose.pid == NOBODY:
        return False
    return process_lives.lives(whose.pid, whose.created, whose.place, folder / OWNER, patience)


def disown(folder: Path) -> None:
    """Write into a folder of this process that it has no owner any more."""
    _signed.discard(folder)
    if (folder / OWNER).exists():  # else the user has removed the folder
        _write(folder, Owner(NOBODY, 0.0))


def _write(folder: Path, owner: Owner) -> None:
    # A reader must never see half a signature and think that the folder has no owner.
    write_whole(folder / OWNER, msgspec.json.encode(owner))


def clear(clusters: Path) -> None:
    """Remove the folders that clusters left when their kernel and warm process were both killed."""
    for folder in clusters.iterdir():
        # If a signature cannot be read, the folder stays: a newer version may own it.
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
    """Whether a folder without a signature is so old that it will not get one."""
    return time.time() - folder.stat().st_mtime > UNSIGNED_SECONDS


def clear_logs(logs: Path, days: float, gigabytes: float) -> None:
    """Remove too old logs, then the oldest ones while all take too much space; none in use."""
    folders, sizes = [], {}
    for path in logs.iterdir():
        with contextlib.suppress(OSError):  # another kernel has removed it
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
            else:  # half made by a dead keeper, or a folder of the user
                unused = NAME.fullmatch(path.name) is not None and _is_nobodys(path)
            if unused:
                shutil.rmtree(path, ignore_errors=True)
                too_much -= sizes[path]
