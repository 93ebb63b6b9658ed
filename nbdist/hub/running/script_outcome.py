"""Decides how a script's job has ended, from its launcher and its ranks. Hub's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.errors import LaunchError
from nbdist.hub.running.life_cycle import stopped
from nbdist.hub.running.script_ends import ended_by_launcher, ended_from_outside
from nbdist.job import report
from nbdist.launchers.host.protocol import Died, Refused
from nbdist.launchers.host.warm_process_client import tail_in_words
from nbdist.wire.messages import Fault

if TYPE_CHECKING:
    from nbdist.errors import NbdistError
    from nbdist.hub.running.launch_plan import Plan
    from nbdist.hub.running.script_ends import Ends
    from nbdist.job.deaths import Death
    from nbdist.job.job import Job
    from nbdist.job.states import Stop
    from nbdist.launchers.host.warm_process_client import WarmProcess
    from nbdist.launchers.scripts.launcher import Launcher


class Outcome:
    """Reports the ranks that one script's job goes on without, and how the job has ended.

    Parameters
    ----------
    job, plan, how
        The job, how it was launched, and its launcher.
    ranks
        What is known of its ranks.
    warm
        The process that keeps its launcher.
    """

    def __init__(self, job: Job, plan: Plan, how: Launcher, ranks: Ends, warm: WarmProcess) -> None:
        self._warm = warm
        self._job, self._plan, self._how, self._ranks = job, plan, how, ranks
        self._lost: dict[int, Death | Fault] = {}
        """The rank that an elastic job has lost last."""

    def look_for_lost(self) -> None:
        """Say which ranks an elastic job goes on without."""
        if not self._plan.elastic or not self._how.GOES_ON:
            return
        for rank, fault in self._ranks.lost().items():
            if not report.secondary(fault):
                self._lost = {rank: fault}
            self._tell_lost(rank, fault, "goes on if enough ranks are left")

    def tell(self, word: Died | Refused | None, why: Stop | None) -> NbdistError | None:
        """Set the state of the job; return its error.

        Parameters
        ----------
        word
            How the launcher has ended; None if its warm process has ended before it.
        why
            Why the job was stopped, None if it was not.
        """
        job = self._job
        if why is not None:  # also if the warm process has ended before the launcher
            self._note_ends(by_us=True)
            return stopped(job, why)
        if word is None:
            job.state = "failed"
            msg = f"the warm process {self._warm.end}, and the launcher and its ranks with it"
            return LaunchError(msg)
        self._note_ends(by_us=False)
        if ended_well(word):
            job.state = "done"
            self._tell_ended_without()
            return None
        job.state = "failed"
        return self._failure(word)

    def _note_ends(self, *, by_us: bool) -> None:
        self._ranks.note_faults(stopped=by_us)
        self._ranks.complete_logs()

    def _failure(self, word: Died | Refused) -> NbdistError:
        job, name = self._job, self._plan.launcher
        self._blame_lost()
        own = [fault for fault in job.errors.values() if not report.secondary(fault)]
        match word:
            case Died(signum=signum) if signum and not own:
                return report.launcher_killed(job, name, signum)
            case _ if job.errors:
                return report.failure(job)
            case Refused(why=why):
                return LaunchError(f"{name} could not be started: {why}")
            case _:
                log = tail_in_words(job.folder / "launcher.log")
                return LaunchError(f"{name} ended with exit code {word.code}; {log}")

    def _blame_lost(self) -> None:
        """Blame the rank that was lost, not the ranks that its launcher has ended since."""
        job, lost = self._job, self._lost
        ended = [rank for rank, fault in job.errors.items() if ended_from_outside(fault)]
        own = {rank for rank, fault in job.errors.items() if not report.secondary(fault)}
        if not lost or not own <= {*ended, *lost}:
            return
        for rank in ended:
            job.errors[rank] = ended_by_launcher(None)
        job.errors |= lost
        job.notes.append(self._how.GIVEN_UP)

    def _tell_ended_without(self) -> None:
        """Say which ranks an elastic job that has ended well has lost since the last look."""
        for rank, fault in self._job.errors.items():
            ended_it = fault.aborted if isinstance(fault, Fault) else ended_from_outside(fault)
            well = ended_it or report.silent(fault)
            if not well and rank not in self._ranks.without:
                self._tell_lost(rank, fault, "has ended without it")
        self._job.errors.clear()

    def _tell_lost(self, rank: int, fault: Death | Fault, then: str) -> None:
        how = report.told(rank, fault, self._job)
        text = f"{how[0].upper()}{how[1:]}; the job {then}."
        self._job.report("lost", text, which=f"{rank} {fault.at}")
        self._job.restarts.append(text)


def ended_well(word: Died | Refused | None) -> bool:
    """Whether a launcher has done what it was started for."""
    return isinstance(word, Died) and word.code == 0 and word.signum == 0
