"""The ranks of a script: what each does, and how those ended that did not say so themselves."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psutil

from nbdist.hub import report
from nbdist.hub.jobs import Death
from nbdist.wire.messages import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nbdist.hub.jobs import Job
    from nbdist.launchers.scripted import Failed
    from nbdist.wire.messages import Pulse


class Ends:
    """Knows the ranks of one script since its last restart. Hub's thread.

    Parameters
    ----------
    job
        Whose `errors` and logs it completes.
    failures
        Finds ranks that failed in what their launcher printed, see
        `nbdist.launchers.scripted.Launcher`.
    """

    def __init__(self, job: Job, failures: Callable[[str], list[Failed]]) -> None:
        self._job = job
        self._log = LauncherLog(job.folder / "launcher.log", failures)
        self.restart = 0
        self.done: dict[int, Fault | None] = {}
        """By rank, how its script ended."""
        self.pulses: dict[int, Pulse | None] = {}
        """By rank that runs, its last word."""
        self.pids: dict[int, int] = {}
        """By rank, its process."""
        self._tracebacks: list[tuple[int, int, list[str]]] = []
        """Rank, restarts before it, and lines."""

    def began(self, rank: int, pid: int) -> None:
        """Note that a rank is there."""
        self.pulses.setdefault(rank, None)
        self.pids[rank] = pid

    def ended(self, rank: int, fault: Fault | None) -> None:
        """Note that a rank's script is over."""
        self.done[rank] = fault
        self.pulses.pop(rank, None)

    def restarted(self, restart: int) -> str:
        """Forget the ranks, of which new ones are there; return why."""
        job = self._job
        self.note_faults(stopped=False)
        why = report.told_first(job) if job.errors else "ranks failed"
        job.errors.clear()
        self.restart = restart
        self.done, self.pulses, self.pids = {}, {}, {}
        return why

    def all_well(self, np: int) -> bool:
        """Whether so many ranks have come to their end, and none badly as far as is known.

        One may have ended without a word, by `os._exit`. After a fault the launcher decides what
        becomes of the others.
        """
        silent = {r for r, pid in self.pids.items() if r not in self.done and not lives(pid)}
        return len(self.done) + len(silent) == np and not any(self.done.values())

    def note_faults(self, *, stopped: bool) -> None:
        """Put into the job how each rank ended that did not end well.

        If it was stopped, what its launcher tells of deaths is our own doing.
        """
        job = self._job
        job.errors |= {rank: fault for rank, fault in self.done.items() if fault is not None}
        if not stopped:
            job.errors |= {death.rank: death for death in self.deaths()}
        for rank, pulse in self.pulses.items():
            if pulse is not None and rank not in self.done and rank not in job.errors:
                job.errors[rank] = _ended_by_launcher(pulse)
        for rank, fault in job.errors.items():
            if isinstance(fault, Fault) and fault.traceback:
                self._tracebacks.append((rank, self.restart, fault.traceback))

    def deaths(self) -> list[Death]:
        """Return the ranks that died without a word, as told since the last look."""
        return [
            self._death(failed)
            for failed in self._log.new()
            if self._died_of_itself(failed.rank, failed.code)
        ]

    def _death(self, failed: Failed) -> Death:
        pulse = self.pulses.get(failed.rank)
        return Death(
            failed.rank, failed.pid or self.pids.get(failed.rank, 0), max(0, -failed.code),
            max(0, failed.code), out_of_memory=False, at=time.time(),
            line=pulse.line if pulse else None,
        )  # fmt: skip

    def _died_of_itself(self, rank: int, code: int) -> bool:
        """Whether an exit code tells of more than is known; a script that is over may yet fail."""
        if rank not in self.done:
            return True
        # The launcher ends one that waits for the others with a positive code.
        return self.done[rank] is None and (code < 0 or not self._job.errors)

    def complete_logs(self) -> None:
        """Add the tracebacks, which the cell shows apart from the output."""
        for rank, restart, lines in self._tracebacks:
            head = [f"(before restart {restart + 1})"] if restart < self.restart else []
            with self._job.log(rank).open("a", encoding="utf-8") as log:
                log.write("\n".join([*head, *lines, ""]))


class LauncherLog:
    """Reads in a launcher's log which ranks have failed; the log need not be there yet."""

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


def _ended_by_launcher(pulse: Pulse) -> Fault:
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
