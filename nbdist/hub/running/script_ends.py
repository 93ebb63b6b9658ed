"""Follows the ranks of a script, and finds how those ended that did not say so."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil

from nbdist.job import report
from nbdist.job.deaths import Death
from nbdist.machine.process_lives import here
from nbdist.wire.messages import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nbdist.job.job import Job
    from nbdist.launchers.scripts.launcher import Failed
    from nbdist.wire.messages import Hello, Pulse


SILENT_SECONDS = 15.0
"""A rank on another host that is silent for this long has ended, or C code holds its GIL."""


class Ends:
    """The ranks of one script since its last restart. Hub's thread.

    Parameters
    ----------
    job
        The job, whose `errors` and logs are completed.
    failures
        Finds failed ranks in the launcher's output, see
        `nbdist.launchers.scripts.launcher.Launcher`.
    """

    def __init__(self, job: Job, failures: Callable[[str], list[Failed]]) -> None:
        self._job = job
        self._log = LauncherLog(job.folder / "launcher.log", failures)
        self.restart = 0
        self.done: dict[int, Fault | None] = {}
        """For each ended rank, its fault or None."""
        self.pulses: dict[int, Pulse | None] = {}
        """For each running rank, its last report."""
        self.places: dict[str, str] = {}
        """For each host's name in the launcher's output, its own name."""
        self.size = 0
        """The number of ranks; 0 before the first one."""
        self.pids: dict[int, int] = {}
        """The pid of each rank."""
        self.without: dict[int, Death | Fault] = {}
        """How the ranks ended without which an elastic job has gone on."""
        self._gone: dict[int, float] = {}
        """For each rank that ended without a report, when this was first noticed."""
        self._far: dict[int, float] = {}
        """For each rank on another host, when it was last heard."""
        self._tracebacks: list[tuple[int, int, list[str]]] = []
        """The rank, the restarts before, and the lines."""

    def began(self, rank: int, hello: Hello) -> None:
        """Record a new rank, perhaps instead of a lost one."""
        if (fault := self.done.pop(rank, None)) is not None:
            self._keep_traceback(rank, fault)
        self.without.pop(rank, None)
        self._gone.pop(rank, None)
        self._job.gone.discard(rank)
        self.pulses.setdefault(rank, None)
        self.pids[rank], self.size = hello.pid, hello.size
        self._job.hosts[rank] = hello.host
        if not hello.place or hello.place != here().name:
            self._far[rank] = time.monotonic()

    def pulsed(self, rank: int, pulse: Pulse) -> None:
        """Record a rank's report."""
        self.pulses[rank] = self._job.pulses[rank] = pulse
        self._gone.pop(rank, None)  # a rank on another host was only silent
        if rank in self._far:
            self._far[rank] = time.monotonic()

    def ended(self, rank: int, fault: Fault | None) -> None:
        """Record the end of a rank's script."""
        self.done[rank] = fault
        self.pulses.pop(rank, None)

    def restarted(self, restart: int) -> str:
        """Forget the ranks, which were restarted; return the reason."""
        job = self._job
        self.note_faults(stopped=False)
        why = report.told_first(job) if job.errors else "ranks failed"
        job.errors.clear()
        job.pulses.clear()
        self.restart = restart
        self.done, self.pulses, self.pids, self.without = {}, {}, {}, {}
        job.hosts.clear()
        self._far.clear()
        self._gone.clear()
        self._log.ended.clear()
        return why

    def all_well(self) -> bool:
        """Whether all ranks have ended, and none has failed as far as is known.

        A rank may have ended without a report, by `os._exit`. After a fault the launcher decides
        about the other ranks.
        """
        self.look()
        ended = len(self.done.keys() | self._gone.keys())
        badly = {rank for rank, fault in self.done.items() if fault is not None}
        return 0 < self.size <= ended and badly <= self.without.keys()

    def running(self) -> dict[int, Pulse | None]:
        """Return the last report of each rank whose process is there."""
        return {rank: pulse for rank, pulse in self.pulses.items() if rank not in self._gone}

    def over(self) -> set[int]:
        """Return the ranks that have ended, and of which no failure is known."""
        silently = self._gone.keys() - self.done.keys() - self.without.keys()
        return silently | {rank for rank, fault in self.done.items() if fault is None}

    def failed(self) -> bool:
        """Whether a rank has failed without which the job has not gone on."""
        return any(fault and rank not in self.without for rank, fault in self.done.items())

    def look(self) -> None:
        """Find ranks that have ended without a report."""
        for rank, pid in self.pids.items():
            if rank not in self.done and not self._lives(rank, pid):
                self._gone.setdefault(rank, time.time())

    def _lives(self, rank: int, pid: int) -> bool:
        if rank in self._far:
            return time.monotonic() - self._far[rank] < SILENT_SECONDS
        return lives(pid)

    def note_faults(self, *, stopped: bool) -> None:
        """Add the failed ranks to the job's errors.

        If the job was stopped, deaths in the launcher's output are our own doing, except those that
        were noticed before.
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
                # There is no other failure, so the launcher did not end this rank.
                job.errors |= {failed.rank: self._death(failed) for failed in self._log.ended[:1]}
        for rank, pulse in self.pulses.items():
            known = pulse is not None or job.errors  # a fast rank may have ended without any report
            if known and rank not in self.done and rank not in job.errors:
                job.errors[rank] = ended_by_launcher(pulse)
        for rank, fault in job.errors.items():
            self._keep_traceback(rank, fault)

    def _keep_traceback(self, rank: int, fault: Death | Fault) -> None:
        if isinstance(fault, Fault) and fault.traceback:
            self._tracebacks.append((rank, self.restart, fault.traceback))

    def lost(self) -> dict[int, Death | Fault]:
        """Return the ranks that failed since the last look, in an elastic job that goes on."""
        found = self.deaths() | {
            rank: fault
            for rank, fault in self.done.items()
            if fault is not None and rank not in self.without
        }
        self.without |= found
        for rank in found:
            self.pulses.pop(rank, None)
            self._job.pulses.pop(rank, None)
            self._job.gone.add(rank)
        return found

    def deaths(self) -> dict[int, Death | Fault]:
        """Return the ranks that died without a report, by the launcher's latest output."""
        found: dict[int, Death | Fault] = {}
        for failed in self._log.new():
            if failed.host:
                found |= self._with_host(failed)
            elif self._died_of_itself(failed.rank, failed.code):
                found[failed.rank] = self._death(failed)
        return found

    def _with_host(self, failed: Failed) -> dict[int, Death | Fault]:
        """Return the ranks that were lost with their host."""
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
        """Whether an exit code shows a failure not known yet, perhaps after the script's end."""
        if rank not in self.done:
            return True
        # A rank that the launcher ends while it waits for others has a positive exit code.
        return self.done[rank] is None and (code < 0 or not self._job.errors)

    def complete_logs(self) -> None:
        """Add the tracebacks to the logs; the cell shows them apart from the output."""
        for rank, restart, lines in self._tracebacks:
            head = [f"(before restart {restart + 1})"] if restart < self.restart else []
            # A full disk must not prevent the report of the failure.
            with (
                contextlib.suppress(OSError),
                self._job.log(rank).open("a", encoding="utf-8") as log,
            ):
                log.write("\n".join([*head, *lines, ""]))


class LauncherLog:
    """Finds failed ranks in a launcher's log, which may not exist yet."""

    def __init__(self, path: Path, failures: Callable[[str], list[Failed]]) -> None:
        self._path, self._failures = path, failures
        self._told: Counter[Failed] = Counter()
        self.ended: list[Failed] = []
        """The ranks ended by SIGTERM so far, usually by the launcher."""

    def new(self) -> list[Failed]:
        """Return new failures since the last look, without ranks that the launcher has ended."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        # Read the whole log each time: the meaning of a line may depend on earlier lines.
        told = Counter(self._failures(text[: text.rfind("\n") + 1]))
        found = list((told - self._told).elements())
        self._told |= told
        self.ended += [failed for failed in found if failed.code == -signal.SIGTERM]
        return [failed for failed in found if failed.code != -signal.SIGTERM]


def ended_by_launcher(pulse: Pulse | None) -> Fault:
    """Return the fault of a rank that its launcher ended after another rank's failure."""
    line, waited = (pulse.line, pulse.waiting) if pulse else (None, None)
    return Fault(
        name="Terminated", text="", traceback=[], line=line, at=time.time(), waited=waited,
        aborted=True,
    )  # fmt: skip


def ended_from_outside(fault: Death | Fault) -> bool:
    """Whether SIGTERM has ended a rank, as launchers do."""
    return isinstance(fault, Death) and fault.signum == signal.SIGTERM


def _lost(text: str, pulse: Pulse | None) -> Fault:
    """Return the fault of a rank whose host was lost."""
    line = pulse.line if pulse else None
    return Fault(name="HostLost", text=text, traceback=[], line=line, at=time.time())


def lives(pid: int) -> bool:
    """Whether a process on this machine is still running."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
