"""States of jobs and ranks, reasons to stop a job, and kinds of reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from nbdist.machine.amounts import in_seconds

JobState = Literal["starting", "queued", "running", "done", "failed", "interrupted", "timed out"]
"""What users, the files of state and the page see. A detached job is starting until its keeper
runs it."""
RankState = Literal["starting", "idle", "busy", "dead"]
"""Of a cluster's rank, which stays between cells."""
ReportKind = Literal["hang", "restart", "lost", "countdown"]
"""Kinds of reports that the lists of all jobs show, too."""
REPORTS: tuple[ReportKind, ...] = get_args(ReportKind)
ENDED: tuple[JobState, ...] = ("done", "failed", "interrupted", "timed out")


@dataclass(frozen=True)
class Stop:
    """Why a job was stopped before its end.

    Parameters
    ----------
    by
        What has stopped it: a person's interrupt, ``--timeout``, the end of its cluster, or a
        SIGTERM at the keeper of a detached job.
    seconds
        What ``--timeout`` had set.
    """

    by: Literal["interrupt", "timeout", "cluster", "keeper"]
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The reason in words, behind ``The cell was``."""
        match self.by:
            case "interrupt":
                return "interrupted"
            case "timeout":
                return f"stopped: it ran longer than --timeout {in_seconds(self.seconds)}"
            case "cluster":
                return "ended with its cluster"
            case "keeper":
                return "ended with its keeper process (SIGTERM)"

    @property
    def state(self) -> JobState:
        """The state of the job that was stopped."""
        return "timed out" if self.by == "timeout" else "interrupted"


INTERRUPT, WITH_CLUSTER, WITH_KEEPER = Stop("interrupt"), Stop("cluster"), Stop("keeper")


def stop_told(text: str) -> Stop:
    """Return what another process has written as `Stop.text`; an interrupt if that is not known."""
    return next((each for each in (WITH_CLUSTER, WITH_KEEPER) if each.text == text), INTERRUPT)
