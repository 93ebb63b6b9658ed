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
from nbdist.notebook.boards import Board
from nbdist.published.kernel import Published

if TYPE_CHECKING:
    from nbdist.job.job import Job
    from nbdist.notebook.clusters import Cluster


@dataclass
class Wish:
    """The cluster that a cell asks for; None for what the cell does not say."""

    np: int | None = None
    backend: str | None = None
    launcher: str | None = None
    gpus: list[int] | None = None
    env: dict[str, str] | None = None


class Follower(Protocol):
    """Shows a background job; see `nbdist.magics.showing.background.Follower`."""

    def show_headline(self) -> None:
        """Show the job's state in the running cell."""


class Session:
    """The clusters, jobs and options of this process. Changed by the main thread, unless noted."""

    def __init__(self) -> None:
        self.hubs = Hubs()
        self.published = Published()
        self.clusters: list[Cluster] = []
        """All clusters that have not been stopped. Any thread may stop one."""
        self.cluster: Cluster | None = None
        """The cluster that cells run on; it may have been stopped from the sidebar."""
        self.last = Wish()
        """The options that cells asked for last."""
        self.script_jobs: list[Job] = []
        """Jobs of cells and calls that ran as scripts, the oldest first. Any thread may append."""
        self.kernel_jobs: list[Job] = []
        """Jobs of cells that ran in this process, the oldest first."""
        self.attached: dict[str, Job] = {}
        """By id, the detached jobs that were attached here and whose events nobody reads."""
        self.boards: dict[str, Board] = {}
        """The TensorBoards by job."""
        self.followers: dict[str, Follower] = {}
        """By job id, the follower that shows the job in the cell that started it."""
        self._past: list[Job] = []
        """Jobs of earlier clusters."""
        atexit.register(self._at_exit, os.getpid())

    def begin(self) -> None:
        """Start in advance what the first cell will need."""
        self.hubs.prepare()

    def end(self) -> None:
        """Stop every cluster and TensorBoard, and forget the options of earlier cells.

        Jobs that ran as scripts, and detached jobs, are kept.
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
        """Forget the current cluster if it has been stopped elsewhere, in the sidebar for example.

        Returns
        -------
        bool
            Whether it had been stopped.

        """
        if self.cluster is None or not self.cluster.stopped:
            return False
        self.release_cluster()
        return True

    def release_cluster(self) -> Cluster | None:
        """Unset the current cluster and return it; its jobs stay known."""
        old, self.cluster = self.cluster, None
        if old is not None:
            self._past.extend(old.jobs())
        return old

    def open_board(self, job: Job, port: int = 0) -> Board:
        """Return the TensorBoard of a job; start one if none runs, or if another port is wanted."""
        known = self.boards.get(job.id)
        if known is not None:
            if known.alive and (not port or known.url.endswith(f":{port}/")):
                return known
            self.stop_boards(job.id)
        board = self.boards[job.id] = Board(job, port)
        return board

    def stop_boards(self, job: str | None = None) -> list[str]:
        """Stop the TensorBoard of a job, or all of them; return the jobs that had one."""
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
