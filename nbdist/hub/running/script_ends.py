"""Follows the ranks of a script, and finds how those ended that did not say so."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil

from nbdist.job import report
from nbdist.job.job import Death
from nbdist.machine.process_lives import here
from nbdist.wire.messages import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nbdist.job.job import Job
    from nbdist.launchers.scripts.launcher import Failed
    from nbdist.wire.messages import Hello, Pulse


SILENT_SECONDS = 15.0
"""A rank on another host that says nothing for so long has ended, or C code holds its GIL."""


class Ends:
    """Knows the ranks of one script since its last restart. Hub's thread.

    Parameters
    ----------
    job
        Whose `errors` and logs it completes.
    failures
        Finds ranks that failed in what their launcher printed, see
        `nbdist.launchers.scripts.launcher.Launcher`.
    """

    def __init__(self, job: Job, failures: Callable[[str], list[Failed]]) -> None:
        self._job = job
        self._log = LauncherLog(job.folder / "launcher.log", failures)
        self.restart = 0
        self.done: dict[int, Fault | None] = {}
        """By rank, how its script ended."""
        self.pulses: dict[int, Pulse | None] = {}
        """By rank that runs, its last word."""
        self.places: dict[str, str] = {}
        """What hosts call themselves, by what their launcher calls them."""
        self.size = 0
        """How many ranks there are; 0 as long as none is."""
        self.pids: dict[int, int] = {}
        """By rank, its process."""
        self.without: dict[int, Death | Fault] = {}
        """How those ended that an elastic job has gone on without."""
        self._gone: dict[int, float] = {}
        """When ranks that had not told their end were first seen to have ended."""
        self._far: dict[int, float] = {}
        """When ranks whose processes cannot be looked at from here were heard last."""
        self._tracebacks: list[tuple[int, int, list[str]]] = []
        """Rank, restarts before it, and lines."""

    def began(self, rank: int, hello: Hello) -> None:
        """Note that a rank is there, perhaps in the place of one that was lost."""
        if (fault := self.done.pop(rank, None)) is not None:
            self._keep_traceback(rank, fault)
        self.without.pop(rank, None)
        self._gone.pop(rank, None)
        self.pulses.setdefault(rank, None)
        self.pids[rank], self.size = hello.pid, hello.size
        self._job.hosts[rank] = hello.host
        if not hello.place or hello.place != here().name:
            self._far[rank] = time.monotonic()

    def pulsed(self, rank: int, pulse: Pulse) -> None:
        """Note what a rank does."""
        self.pulses[rank] = self._job.pulses[rank] = pulse
        self._gone.pop(rank, None)  # one on another host had only been silent
        if rank in self._far:
            self._far[rank] = time.monotonic()

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
        self.done, self.pulses, self.pids, self.without = {}, {}, {}, {}
        job.hosts.clear()
        self._far.clear()
        self._gone.clear()
        self._log.ended.clear()
        return why

    def all_well(self) -> bool:
        """Whether all ranks have come to their end, and none badly as far as is known.

        One may have ended without a word, by `os._exit`. After a fault the launcher decides what
        becomes of the others.
        """
        self.look()
        ended = len(self.done.keys() | self._gone.keys())
        badly = {rank for rank, fault in self.done.items() if fault is not None}
        return 0 < self.size <= ended and badly <= self.without.keys()

    def look(self) -> None:
        """Note who has ended without a word."""
        for rank, pid in self.pids.items():
            if rank not in self.done and not self._lives(rank, pid):
                self._gone.setdefault(rank, time.time())

    def _lives(self, rank: int, pid: int) -> bool:
        if rank in self._far:
            return time.monotonic() - self._far[rank] < SILENT_SECONDS
        return lives(pid)

    def note_faults(self, *, stopped: bool) -> None:
        """Put into the job how each rank ended that did not end well.

        If it was stopped, the deaths that its launcher tells of are our own doing, but for those
        that were seen before.
        """
        job = self._job
        job.errors |= {rank: fault for rank, fault in self.done.items() if fault is not None}
        died = self.deaths()
        if stopped:
            job.errors |= {rank: death for rank, death in died.items() if rank in self._gone}
        else:
            job.errors |= died
            faults = job.errors.values()
            if all(report.secondary(fault) and not report.silent(fault) for fault in faults):
                # Nothing else has gone wrong: it was not its launcher that ended this one.
                job.errors |= {failed.rank: self._death(failed) for failed in self._log.ended[:1]}
        for rank, pulse in self.pulses.items():
            known = pulse is not None or job.errors  # a quick one may have ended without a word
            if known and rank not in self.done and rank not in job.errors:
                job.errors[rank] = ended_by_launcher(pulse)
        for rank, fault in job.errors.items():
            self._keep_traceback(rank, fault)

    def _keep_traceback(self, rank: int, fault: Death | Fault) -> None:
        if isinstance(fault, Fault) and fault.traceback:
            self._tracebacks.append((rank, self.restart, fault.traceback))

    def lost(self) -> dict[int, Death | Fault]:
        """Return the ranks that ended badly since the last look, for an elastic job to go on."""
        found = self.deaths() | {
            rank: fault
            for rank, fault in self.done.items()
            if fault is not None and rank not in self.without
        }
        self.without |= found
        for rank in found:
            self.pulses.pop(rank, None)
        return found

    def deaths(self) -> dict[int, Death | Fault]:
        """Return the ranks that died without a word, as told since the last look."""
        found: dict[int, Death | Fault] = {}
        for failed in self._log.new():
            if failed.host:
                found |= self._with_host(failed)
            elif self._died_of_itself(failed.rank, failed.code):
                found[failed.rank] = self._death(failed)
        return found

    def _with_host(self, failed: Failed) -> dict[int, Death | Fault]:
        """Return the ranks that are lost with their host."""
        name = self.places.get(failed.host, failed.host)
        return {
            rank: _lost(f"{failed.host}: {failed.how}", self.pulses.get(rank))
            for rank, host in self._job.hosts.items()
            if host == name and rank not in self.done
        }

    def _death(self, failed: Failed) -> Death:
        pulse = self.pulses.get(failed.rank)
        return Death(
            failed.rank, failed.pid or self.pids.get(failed.rank, 0), max(0, -failed.code),
            max(0, failed.code), out_of_memory=False, at=self._gone.get(failed.rank, time.time()),
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
            # A disk that is full must not keep the cell from telling what went wrong.
            with (
                contextlib.suppress(OSError),
                self._job.log(rank).open("a", encoding="utf-8") as log,
            ):
                log.write("\n".join([*head, *lines, ""]))


class LauncherLog:
    """Reads in a launcher's log which ranks have failed; the log need not be there yet."""

    def __init__(self, path: Path, failures: Callable[[str], list[Failed]]) -> None:
        self._path, self._failures = path, failures
        self._told: Counter[Failed] = Counter()
        self.ended: list[Failed] = []
        """Those told of so far that SIGTERM has ended, as a rule the launcher's."""

    def new(self) -> list[Failed]:
        """Return those told since the last look; ranks the launcher has ended are left out."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        # All of it each time: what a line means may depend on lines that have been read before.
        told = Counter(self._failures(text[: text.rfind("\n") + 1]))
        found = list((told - self._told).elements())
        self._told |= told
        self.ended += [failed for failed in found if failed.code == -signal.SIGTERM]
        return [failed for failed in found if failed.code != -signal.SIGTERM]


def ended_by_launcher(pulse: Pulse | None) -> Fault:
    """Return what is known of a rank that its launcher ended since another had failed."""
    line, waited = (pulse.line, pulse.waiting) if pulse else (None, None)
    return Fault(
        name="Terminated", text="", traceback=[], line=line, at=time.time(), waited=waited,
        aborted=True,
    )  # fmt: skip


def ended_from_outside(fault: Death | Fault) -> bool:
    """Whether SIGTERM has ended a rank, which is how launchers end them."""
    return isinstance(fault, Death) and fault.signum == signal.SIGTERM


def _lost(text: str, pulse: Pulse | None) -> Fault:
    """Return what is known of a rank whose host is lost."""
    line = pulse.line if pulse else None
    return Fault(name="HostLost", text=text, traceback=[], line=line, at=time.time())


def lives(pid: int) -> bool:
    """Whether a process of this machine has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
