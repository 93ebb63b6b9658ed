"""Information about processes; each function also works if the process ends meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel


def family(kernel: Kernel) -> list[psutil.Process]:
    """Return all processes that descend from a kernel."""
    return psutil.Process(kernel.pid).children(recursive=True)


def sockets(process: psutil.Process) -> list[Any]:
    """Return the internet sockets of a process; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return list(process.net_connections("inet"))
    return []


def listening(kernel: Kernel) -> set[str]:
    """Return the addresses that the descendants of a kernel listen on."""
    return {
        found.laddr.ip
        for process in family(kernel)
        for found in sockets(process)
        if found.status == psutil.CONN_LISTEN
    }


def command(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; empty if it has ended or belongs to another user."""
    with suppress(psutil.Error, OSError):
        return process.environ()
    return {}


def memory_maps(process: psutil.Process) -> str:
    """Return Linux's memory map of a process; '' if it has ended, or on other systems."""
    with suppress(OSError):
        return Path(f"/proc/{process.pid}/maps").read_text()
    return ""


def runs(process: psutil.Process) -> bool:
    """Whether a process runs, and is not only waiting to be reaped."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
