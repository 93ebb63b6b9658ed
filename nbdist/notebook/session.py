"""The session: a notebook's clusters, jobs and last flags; one object for the process.

`session` begins empty. `Session.begin` starts what the first cell will need, `Session.end` stops
what was started, after which `begin` may come again. What is there when the process exits ends with
the process. A script that uses nbdist without IPython has the same object and never begins it.
"""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nbdist.hub.hubs import Hubs
from nbdist.published.kernel import Published

if TYPE_CHECKING:
    from nbdist.job.job import Job
    from nbdist.notebook.boards import Board
    from nbdist.notebook.clusters import Cluster


@dataclass
class Wish:
    """What a cell asks of the cluster; None where it says nothing."""

    np: int | None = None
    backend: str | None = None
    launcher: str | None = None
    gpus: list[int] | None = None
    env: dict[str, str] | None = None


class Follower(Protocol):
    """Shows a job in the background; see `nbdist.magics.showing.background.Follower`."""

    def show_headline(self) -> None:
        """Show in the running cell how the job is doing."""


class Session:
    """What this process has. The main thread changes it, if nothing else is said."""

    def __init__(self) -> None:
        self.hubs = Hubs()
        self.published = Published()
        self.clusters: list[Cluster] = []
        """All that have not been stopped. Any thread may stop one."""
        self.cluster: Cluster | None = None
        """The one that cells run on; it may have been stopped from outside."""
        self.last = Wish()
        """What cells asked for last."""
        self.script_jobs: list[Job] = []
        """Jobs of cells and calls that ran as scripts, the oldest first. Any thread adds to it."""
        self.kernel_jobs: list[Job] = []
        """Jobs of cells that ran in this process, the oldest first."""
        self.attached: dict[str, Job] = {}
        """By id, a detached job that somebody here has asked for and that nobody looks at."""
        self.boards: dict[str, Board] = {}
        """By job, its TensorBoard."""
        self.followers: dict[str, Follower] = {}
        """By id, what shows a job in the cell that has started the job."""
        self._past: list[Job] = []
        """Jobs of the clusters before this one."""
        atexit.register(self._at_exit, os.getpid())

    def begin(self) -> None:
        """Start what the first cell will need, ahead of it."""
        self.hubs.prepare()

    def end(self) -> None:
        """Stop every cluster and TensorBoard, and forget what cells asked for.

        Jobs that ran as scripts and detached jobs are kept.
        """
        self.cluster, self.last = None, Wish()
        self._past.clear()
        for cluster in reversed(self.clusters.copy()):
            cluster.stop()
        self.hubs.drop_prepared()
        self.stop_boards()
        self.followers.clear()

    def jobs(self) -> list[Job]:
        """Return the notebook's jobs, the oldest first."""
        ours = self._past + self.script_jobs + self.kernel_jobs
        if self.cluster is not None:
            ours += self.cluster.jobs()
        return sorted(ours, key=lambda job: job.created)

    def running_scripts(self) -> list[Job]:
        """Return the jobs that run as scripts now."""
        return [job for job in self.script_jobs if not job.done]

    def has_cluster(self) -> bool:
        """Return whether there is a cluster that has not been stopped."""
        return self.cluster is not None and not self.cluster.stopped

    def forget_stopped(self) -> bool:
        """Let go of a cluster that somebody else has stopped, the sidebar's user say.

        Returns
        -------
        bool
            Whether there was one.
        """
        if self.cluster is None or not self.cluster.stopped:
            return False
        self.release_cluster()
        return True

    def release_cluster(self) -> Cluster | None:
        """Have no current cluster any more; return the one that was, whose jobs stay known."""
        old, self.cluster = self.cluster, None
        if old is not None:
            self._past.extend(old.jobs())
        return old

    def stop_boards(self, job: str | None = None) -> list[str]:
        """End the TensorBoard of a job, or all; return the jobs that had one."""
        found = [id_ for id_ in self.boards if job in (None, id_)]
        for id_ in found:
            self.boards.pop(id_).stop()
        return found

    def _at_exit(self, pid: int) -> None:
        # A fork of the notebook's kernel runs this too; what is here is not its own.
        if os.getpid() != pid:
            return
        try:
            self.published.end()
        finally:
            self.hubs.abandon()


session = Session()
