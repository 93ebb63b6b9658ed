"""How ranks of a script have ended that did not say so themselves. Hub's thread."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psutil

from nbdist.hub.jobs import Death
from nbdist.wire.messages import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nbdist.launchers.scripted import Failed
    from nbdist.wire.messages import Pulse


class LauncherLog:
    """Reads in a launcher's log which ranks have failed.

    Parameters
    ----------
    path
        The log; it need not be there yet.
    failures
        Finds them in a text, see `nbdist.launchers.scripted.Launcher`.
    """

    def __init__(self, path: Path, failures: Callable[[str], list[Failed]]) -> None:
        self._path, self._failures = path, failures
        self._read = 0

    def new(self) -> list[Failed]:
        """Return those told since the last look; ranks the launcher has ended are left out."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        whole = text.rfind("\n") + 1
        told, self._read = text[self._read : whole], max(self._read, whole)
        return [failed for failed in self._failures(told) if failed.code != -signal.SIGTERM]


def death(failed: Failed, pid: int, pulse: Pulse | None) -> Death:
    """Return what is known of a rank that died; `pid` if its launcher does not say."""
    return Death(
        failed.rank, failed.pid or pid, max(0, -failed.code), max(0, failed.code),
        out_of_memory=False, at=time.time(), line=pulse.line if pulse else None,
    )  # fmt: skip


def ended_by_launcher(pulse: Pulse) -> Fault:
    """Return what is known of a rank that its launcher ended since another had failed."""
    return Fault(
        name="Terminated", text="", traceback=[], line=pulse.line, at=time.time(),
        waited=pulse.waiting, aborted=True,
    )  # fmt: skip


def lives(pid: int) -> bool:
    """Whether a process of this machine has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
