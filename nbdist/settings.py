"""What can be set, all of it by environment variables that begin with ``NBDIST_``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import platformdirs

from nbdist.backends.groups.recovery import FORCE, WAYS
from nbdist.errors import UsageError

METRICS = ("page", "widget", "picture", "end")
"""What NBDIST_METRICS may be: how metrics are shown."""
PAGE = "NBDIST_PAGE"
"""A Jupyter server that has our extension sets it for its kernels, to the version of its frames."""


def _home() -> Path:
    named = os.environ.get("NBDIST_HOME")
    if not named:
        return platformdirs.user_state_path("nbdist")
    home = Path(named).expanduser()
    if not home.is_absolute():
        msg = (
            f"NBDIST_HOME={named!r} would be another folder wherever the notebook goes: give it a "
            "path that begins with /"
        )
        raise UsageError(msg)
    return home


@dataclass(frozen=True)
class Settings:
    """Limits and places; read anew for every cluster."""

    home: Path = field(default_factory=_home)
    """NBDIST_HOME: where clusters and their logs lie (`platformdirs` state folder)."""
    hang_seconds: float = 10.0
    """NBDIST_HANG_SECONDS: ranks that wait this long for others are reported."""
    grace_seconds: float = 0.15
    """NBDIST_GRACE_SECONDS: after a rank's fault the others may end by themselves this long."""
    kill_seconds: float = 5.0
    """NBDIST_KILL_SECONDS: countdown after which a rank that cannot be interrupted is killed."""
    start_seconds: float = 180.0
    """NBDIST_START_SECONDS: ranks must be there by then. One that dies is known at once; one that
    imports TensorFlow from a slow disk takes minutes."""
    form_seconds: float = 30.0
    """NBDIST_FORM_SECONDS: the process group must be formed by then."""
    recovery: str = ""
    """NBDIST_RECOVERY: how groups come back after a fault, see
    `nbdist.backends.groups.recovery`; by itself the best way that this torch allows."""
    log_days: float = 30.0
    """NBDIST_LOG_DAYS: logs are kept this long."""
    log_megabytes: float = 256.0
    """NBDIST_LOG_MEGABYTES: when a rank's log is larger, the next cell's is another file."""
    log_gigabytes: float = 10.0
    """NBDIST_LOG_GIGABYTES: all logs together may take this much, then the oldest go."""

    @classmethod
    def read(cls) -> Settings:
        """Read the environment.

        Raises
        ------
        UsageError
            If a variable does not hold a number, or one of the words it may be.
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
    """Make a folder that only its owner may enter; the same holds for each made on the way to it.

    Raises
    ------
    UsageError
        If it cannot be made.
    """
    missing = [parent for parent in path.parents if not parent.exists()]
    try:
        for parent in reversed(missing):
            parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700)
    except OSError as err:
        raise UsageError(no_place(err)) from err


def no_place(err: OSError) -> str:
    """Say what to do where files of ours cannot be made."""
    return (
        f"nbdist cannot make its files: {err}. `%dist jobs --clean` makes room; NBDIST_HOME names "
        "another place for them."
    )
