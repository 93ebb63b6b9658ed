"""What clusters leave on disk: folders nobody removed any more, and logs that have grown old."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

import msgspec

from nbdist.system import is_still, started, write_whole

OWNER = "owner.json"
NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
"""How folders of logs are called."""
NOBODY = -1
UNSIGNED_SECONDS = 60.0
"""A folder is signed as soon as it is made; one older than this and unsigned is nobody's."""


class Owner(msgspec.Struct, frozen=True):
    """Whose a cluster's folder is: a process, named beyond doubt, and its temp folder."""

    pid: int
    created: float
    temp: str = ""

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.pid != NOBODY and is_still(self.pid, self.created)


def sign(folder: Path, temp: str = "") -> None:
    """Write into a cluster's folder that it is this process's."""
    _write(folder, Owner(os.getpid(), started(os.getpid()), temp))


def owner(folder: Path) -> Owner:
    """Return whose a folder is.

    Raises
    ------
    OSError, msgspec.MsgspecError
        If that cannot be read.
    """
    return msgspec.json.decode((folder / OWNER).read_bytes(), type=Owner)


def disown(folder: Path) -> None:
    """Write into a folder of this process's that it is nobody's any more."""
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
            whose = owner(folder)
            if not whose.alive:
                if whose.temp:
                    shutil.rmtree(whose.temp, ignore_errors=True)
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
            # A detached job may run on another host: its keeper shows there that it is alive.
            folders.append((max(file.st_mtime for file in found), path))
    too_much = sum(sizes.values()) - gigabytes * 1e9
    for changed, path in sorted(folders):
        if too_much <= 0 and time.time() - changed < days * 86400:
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if (path / OWNER).exists():
                unused = not owner(path).alive
            else:  # one of ours that its keeper left halfway, or something of the user's
                unused = NAME.fullmatch(path.name) is not None and _is_nobodys(path)
            if unused:
                shutil.rmtree(path, ignore_errors=True)
                too_much -= sizes[path]
