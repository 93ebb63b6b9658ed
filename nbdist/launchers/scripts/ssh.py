"""Builds ssh commands that start a program on another host."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONNECT_SECONDS = 10
ALIVE_SECONDS, ALIVE_COUNT = 10, 3
"""ssh asks after this many seconds, and gives up after this many requests without an answer."""
OPTIONS = (
    "-4",  # IPv4 for ssh, gloo and the hub alike
    "-T", "-x",
    "-o", "BatchMode=yes",
    "-o", f"ConnectTimeout={CONNECT_SECONDS}",
    "-o", f"ServerAliveInterval={ALIVE_SECONDS}",
    "-o", f"ServerAliveCountMax={ALIVE_COUNT}",
)  # fmt: skip
OF_A_HOST = ("HOSTNAME", "HOME", "DISPLAY", "XAUTHORITY", "SHLVL", "PWD", "OLDPWD", "LS_COLORS")
"""Variables that each host sets itself, besides those with the prefixes in `SESSION`."""
SESSION = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")


def command(host: str, words: list[str], options: Iterable[str] = ()) -> list[str]:
    """Return the command that runs a program on a host, with this process's PYTHONPATH."""
    path = os.environ.get("PYTHONPATH")
    found = ["env", f"PYTHONPATH={path}"] if path else []
    return ["ssh", *OPTIONS, *options, "--", host, shlex.join([*found, *words])]


def python(module: str, *words: str) -> list[str]:
    """Return the command that runs our module; every host has Python at the same path."""
    return [sys.executable, "-u", "-m", module, *words]


def environ_there(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that are valid on another host, too."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_A_HOST and not name.startswith(SESSION)
    }
