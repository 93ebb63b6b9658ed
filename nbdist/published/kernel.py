"""Publishes a kernel's clusters and jobs, and carries out commands for them.

Clusters and scripts say here that they are there. The hub's thread writes the file of state
(`nbdist.published.beacon`); commands run on threads of their own, so they may do what any thread
may: no cell, and nothing that the notebook's main thread alone may touch.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.errors import UsageError
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.job import changes
from nbdist.published import records as shown
from nbdist.published import state_file as records
from nbdist.published.beacon import Beacon, Commands
from nbdist.published.records import ShownJob
from nbdist.published.state_file import ClusterRecord, JobRecord, Record

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub
    from nbdist.hub.link.ranks import Rank
    from nbdist.job.job import Job

MOST_ENDED = 5
"""How many ended jobs are shown."""
EXIT_SECONDS = 2.0
_KERNEL = re.compile(r"kernel-([0-9a-f-]{36})\.json$")


class Shown(Protocol):
    """A published cluster; see `nbdist.notebook.clusters.Cluster`."""

    id: str
    np: int
    backend: str
    created: float
    hub: Hub

    @property
    def ranks(self) -> list[Rank]:
        """The hub's record of each rank."""

    @property
    def lost(self) -> bool:
        """Whether its ranks have ended."""

    def stop(self) -> None:
        """End the cluster."""

    def unfinished(self) -> list[Job]:
        """Return the running and waiting jobs."""

    def restart(self, ranks: list[int]) -> dict[int, dict[str, str]]:
        """Replace ranks by new processes."""

    def stacks(self) -> dict[int, str]:
        """Return the ranks' stacks."""


class Published:
    """The published state of this process, from its first cluster or job to `end`."""

    def __init__(self) -> None:
        self._clusters: dict[str, Shown] = {}
        self._jobs: list[ShownJob] = []
        self._beacon: Beacon | None = None
        self._changing = threading.Lock()
        """Held while a job is added or the beacon is created."""

    def show_cluster(self, cluster: Shown) -> None:
        """Publish a cluster, until `hide_cluster`. Any thread."""
        self._clusters[cluster.id] = cluster
        self._begin()

    def hide_cluster(self, cluster: Shown) -> None:
        """Stop publishing a cluster."""
        self._clusters.pop(cluster.id, None)
        hub_loop().loop.call_soon_threadsafe(changes.happened)

    def show_job(self, job: Job, launcher: str, cluster: str = "") -> None:
        """Publish a job, also for a while after its end."""
        with self._changing:
            ended = [each for each in self._jobs if each.job.done]
            for old in ended[:-MOST_ENDED]:
                self._jobs.remove(old)
            self._jobs.append(ShownJob(job, launcher, cluster))
        self._begin()

    def _begin(self) -> None:
        with self._changing:
            if self._beacon is None:
                commands: Commands = {
                    "interrupt": self._interrupt,
                    "stop": self._stop,
                    "restart": self._restart,
                    "stacks": self._stacks,
                }
                self._beacon = Beacon(self._tell, commands)
                hub_loop().soon(self._beacon.start())

    def end(self) -> None:
        """Remove the published state, as the process exits."""
        if self._beacon is not None:
            hub_loop().wait(self._beacon.stop(), EXIT_SECONDS)

    # -- what is seen; the hub's thread --------------------------------------------------------

    def _tell(self) -> Record | None:
        clusters = [_cluster(each) for each in list(self._clusters.values())]
        jobs = self._recent()
        if not clusters and not jobs:
            return None
        return records.of_this_process(
            records.KERNEL, kernel=_kernel(), clusters=clusters, jobs=jobs
        )

    def _recent(self) -> list[JobRecord]:
        """Return all unfinished jobs, and the last ended ones."""
        listed = list(self._jobs)
        ended = [each for each in listed if each.job.done][-MOST_ENDED:]
        return [each.record() for each in listed if each in ended or not each.job.done]

    # -- what may be done; any thread ----------------------------------------------------------

    def _named(self, cluster: str) -> Shown:
        if cluster not in self._clusters:
            raise UsageError(f"cluster {cluster} was stopped")
        return self._clusters[cluster]

    def _job(self, job: str) -> Job:
        for each in self._jobs.copy():  # other threads may add jobs
            if each.job.id == job:
                return each.job
        raise UsageError(f"job {job} is not known any more")

    def _interrupt(self, job: str) -> None:
        self._job(job).cancel()

    def _stop(self, cluster: str) -> None:
        self._named(cluster).stop()

    def _restart(self, cluster: str, rank: int) -> dict[str, Any]:
        found = self._named(cluster)
        for job in found.unfinished():  # stopping would wait for their end, perhaps forever
            raise UsageError(
                f"job {job.id} ({job.state}) uses this cluster: interrupt the job, or wait for its "
                f"end, before rank {rank} is restarted"
            )
        return {"lacks": sorted(found.restart([rank]).get(rank, {}))}

    def _stacks(self, cluster: str = "", job: str = "") -> dict[str, Any]:
        found = self._job(job).stacks() if job else self._named(cluster).stacks()
        return {"stacks": {str(rank): text for rank, text in found.items()}}


@functools.cache
def _kernel() -> str:
    if "ipykernel.kernelapp" not in sys.modules:
        return ""  # not a kernel: do not import ipykernel for this
    from ipykernel.connect import get_connection_file

    try:
        found = _KERNEL.search(get_connection_file())
    except RuntimeError:  # imported, but not running
        return ""
    return found[1] if found else ""


def _cluster(cluster: Shown) -> ClusterRecord:
    warm = cluster.hub.host.warm
    return ClusterRecord(
        id=cluster.id, np=cluster.np, backend=cluster.backend, launcher="engines",
        state="lost" if cluster.lost else "running", created=cluster.created,
        root=(warm.pid, warm.created), folder=str(cluster.hub.host.folder),
        ranks=[shown.rank_of_cluster(rank) for rank in cluster.ranks],
    )  # fmt: skip
