"""The settings of nbdist, all of them environment variables with the prefix ``NBDIST_``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import platformdirs

from nbdist.backends.groups.recovery import FORCE, WAYS
from nbdist.errors import UsageError

METRICS = ("page", "widget", "picture", "end")
"""NBDIST_METRICS: how metrics are shown: `page` (by nbdist's extension of JupyterLab), `widget` (by
ipywidgets), `picture` (drawn again every few seconds) or `end` (once, when the cell has ended). The
default is the best of these that the front end can show."""
PAGE = "NBDIST_PAGE"
"""A Jupyter server with our extension sets this variable for its kernels, to the version of the
frames that its page reads."""


def _home() -> Path:
    named = os.environ.get("NBDIST_HOME")
    if not named:
        return platformdirs.user_state_path("nbdist")
    home = Path(named).expanduser()
    if not home.is_absolute():
        msg = (
            f"NBDIST_HOME={named!r} is a relative path, which changes with the working directory: "
            "use a path that begins with /"
        )
        raise UsageError(msg)
    return home


@dataclass(frozen=True)
class Settings:
    """Limits and folders, read again for every cluster."""

    home: Path = field(default_factory=_home)
    """NBDIST_HOME: the folder of clusters and of the logs of jobs, a path that begins with `/` or
    `~`. The default is a folder `nbdist` in the user's state folder."""
    hang_seconds: float = 10.0
    """NBDIST_HANG_SECONDS: ranks that wait this many seconds for other ranks are reported."""
    grace_seconds: float = 0.15
    """NBDIST_GRACE_SECONDS: after a rank's fault the other ranks have this many seconds to end by
    themselves."""
    kill_seconds: float = 5.0
    """NBDIST_KILL_SECONDS: a rank that cannot be interrupted is killed after this many seconds; the
    cell counts them down."""
    start_seconds: float = 180.0
    """NBDIST_START_SECONDS: ranks must have started within this many seconds. A rank that dies is
    known at once; a rank that imports TensorFlow from a slow disk takes minutes."""
    form_seconds: float = 30.0
    """NBDIST_FORM_SECONDS: the process group must be formed within this many seconds."""
    recovery: str = ""
    """NBDIST_RECOVERY: the way to begin with when process groups are recovered after a fault:
    `in-place`, `anew` or `replace`. The default is the best way that this torch allows."""
    log_days: float = 30.0
    """NBDIST_LOG_DAYS: logs are kept for this many days."""
    log_megabytes: float = 256.0
    """NBDIST_LOG_MEGABYTES: when the log of a rank is larger than this (1 MB is 10⁶ bytes), the
    next cell gets a new file."""
    log_gigabytes: float = 10.0
    """NBDIST_LOG_GIGABYTES: when all logs together are larger than this (1 GB is 10⁹ bytes), the
    oldest are removed."""

    @classmethod
    def read(cls) -> Settings:
        """Read the environment.

        Raises
        ------
        UsageError
            If a variable is not a number, or not one of the allowed words.
        """
        values: dict[str, Any] = {}
        metrics = os.environ.get("NBDIST_METRICS", "")
        if metrics not in ("", *METRICS):
            msg = f"NBDIST_METRICS={metrics!r} is none of {', '.join(METRICS)}"
            raise UsageError(msg)
        way = os.environ.get(FORCE, "")
        if way not in ("", *WAYS):
            raise UsageError(f"{FORCE}={way!r} is none of {', '.join(WAYS)}")
        values["recovery"] = way
        for item in fields(cls):
            name = f"NBDIST_{item.name.upper()}"
            text = os.environ.get(name)
            if item.name in ("home", "recovery") or not text:
                continue
            try:
                values[item.name] = float(text)
            except ValueError:
                msg = f"{name}={text!r} is not a number"
                raise UsageError(msg) from None
        return cls(**values)


def make_folder(path: Path) -> None:
    """Make a folder, and its missing parents, that only the owner may enter.

    Raises
    ------
    UsageError
        If the folder cannot be made.
    """
    missing = [parent for parent in path.parents if not parent.exists()]
    try:
        for parent in reversed(missing):
            parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700)
    except OSError as err:
        raise UsageError(no_place(err)) from err


def no_place(err: OSError) -> str:
    """Return the message for files of ours that cannot be made."""
    return (
        f"nbdist cannot write its files: {err}. `%dist jobs --clean` frees space; NBDIST_HOME sets "
        "another folder for them."
    )
