"""ssh: how a program is started on another host."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONNECT_SECONDS = 10
ALIVE_SECONDS, ALIVE_COUNT = 10, 3
"""A host that has not answered so often, asked after so many seconds, is lost."""
OPTIONS = (
    "-4",  # one kind of address for ssh, gloo and the hub
    "-T", "-x",
    "-o", "BatchMode=yes",
    "-o", f"ConnectTimeout={CONNECT_SECONDS}",
    "-o", f"ServerAliveInterval={ALIVE_SECONDS}",
    "-o", f"ServerAliveCountMax={ALIVE_COUNT}",
)  # fmt: skip
OF_A_HOST = ("HOSTNAME", "HOME", "DISPLAY", "XAUTHORITY", "SHLVL", "PWD", "OLDPWD", "LS_COLORS")
"""Variables that another host has its own of, besides those that begin with `SESSION`."""
SESSION = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")


def command(host: str, words: list[str], options: Iterable[str] = ()) -> list[str]:
    """Return what runs a program there, found by this process's environment."""
    path = os.environ.get("PYTHONPATH")
    found = ["env", f"PYTHONPATH={path}"] if path else []
    return ["ssh", *OPTIONS, *options, "--", host, shlex.join([*found, *words])]


def python(module: str, *words: str) -> list[str]:
    """Return what runs a module of ours; the interpreter lies at the same path on every host."""
    return [sys.executable, "-u", "-m", module, *words]


def environ_there(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that hold on another host too; by default of this process's."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_A_HOST and not name.startswith(SESSION)
    }
