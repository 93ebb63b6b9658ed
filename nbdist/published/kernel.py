"""Clusters and jobs of a kernel as others see them, and what others may do with them.

Clusters and scripts say here that they are there. The hub's thread writes the file of state
(`nbdist.published.beacon`); commands run on threads of their own, so they may do what any thread
may: no cell, and nothing that the notebook's main thread alone may touch.
"""

from __future__ import annotations

import atexit
import functools
import os
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
"""Jobs that have ended are shown, the last ones."""
EXIT_SECONDS = 2.0
_KERNEL = re.compile(r"kernel-([0-9a-f-]{36})\.json$")


class Shown(Protocol):
    """What a cluster is, seen from here; see `nbdist.notebook.clusters.Cluster`."""

    id: str
    np: int
    backend: str
    created: float
    hub: Hub

    @property
    def ranks(self) -> list[Rank]:
        """What is known of each rank."""

    @property
    def lost(self) -> bool:
        """Whether its ranks are gone."""

    def stop(self) -> None:
        """End it."""

    def unfinished(self) -> list[Job]:
        """Return the jobs that run or wait."""

    def restart(self, ranks: list[int]) -> dict[int, dict[str, str]]:
        """Put new processes in the place of ranks."""

    def stacks(self) -> dict[int, str]:
        """Return where the ranks are."""


_clusters: dict[str, Shown] = {}
_jobs: list[ShownJob] = []
_beacon: Beacon | None = None
_changing = threading.Lock()


def show_cluster(cluster: Shown) -> None:
    """Let a cluster be seen, until `hide_cluster`. Any thread."""
    _clusters[cluster.id] = cluster
    _begin()


def hide_cluster(cluster: Shown) -> None:
    """Let a cluster be seen no more."""
    _clusters.pop(cluster.id, None)
    hub_loop().loop.call_soon_threadsafe(changes.happened)


def show_job(job: Job, launcher: str, cluster: str = "") -> None:
    """Let a job be seen, also when it has ended, for a while."""
    with _changing:
        ended = [each for each in _jobs if each.job.done]
        for old in ended[:-MOST_ENDED]:
            _jobs.remove(old)
        _jobs.append(ShownJob(job, launcher, cluster))
    _begin()


def _begin() -> None:
    global _beacon  # one for the process
    with _changing:
        if _beacon is None:
            _beacon = Beacon(_tell, COMMANDS)
            hub_loop().soon(_beacon.start())
            atexit.register(_end, os.getpid())


def _end(pid: int) -> None:
    if _beacon is not None and os.getpid() == pid:  # a fork has it too, and it is not its own
        hub_loop().wait(_beacon.stop(), EXIT_SECONDS)


# -- what is seen; the hub's thread ----------------------------------------------------------------


def _tell() -> Record | None:
    clusters, jobs = [_cluster(each) for each in list(_clusters.values())], _recent()
    if not clusters and not jobs:
        return None
    return records.of_this_process(records.KERNEL, kernel=_kernel(), clusters=clusters, jobs=jobs)


def _recent() -> list[JobRecord]:
    """Return all jobs that have not ended, and the last of those that have."""
    listed = list(_jobs)
    ended = [each for each in listed if each.job.done][-MOST_ENDED:]
    return [each.record() for each in listed if each in ended or not each.job.done]


@functools.cache
def _kernel() -> str:
    if "ipykernel.kernelapp" not in sys.modules:
        return ""  # plain Python, or a terminal: they need not import it for this
    from ipykernel.connect import get_connection_file

    try:
        found = _KERNEL.search(get_connection_file())
    except RuntimeError:  # it was imported, and not run
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


# -- what may be done; any thread ------------------------------------------------------------------


def _named(cluster: str) -> Shown:
    if cluster not in _clusters:
        raise UsageError(f"cluster {cluster} was stopped")
    return _clusters[cluster]


def _job(job: str) -> Job:
    for each in _jobs.copy():  # other threads add to it
        if each.job.id == job:
            return each.job
    raise UsageError(f"job {job} is not known any more")


def _interrupt(job: str) -> None:
    _job(job).cancel()


def _stop(cluster: str) -> None:
    _named(cluster).stop()


def _restart(cluster: str, rank: int) -> dict[str, Any]:
    found = _named(cluster)
    for job in found.unfinished():  # it would wait for its end, perhaps for ever
        raise UsageError(
            f"job {job.id} ({job.state}) is on this cluster: rank {rank} can be replaced when that "
            "has ended; interrupt it first"
        )
    return {"lacks": sorted(found.restart([rank]).get(rank, {}))}


def _stacks(cluster: str = "", job: str = "") -> dict[str, Any]:
    found = _job(job).stacks() if job else _named(cluster).stacks()
    return {"stacks": {str(rank): text for rank, text in found.items()}}


COMMANDS: Commands = {
    "interrupt": _interrupt,
    "stop": _stop,
    "restart": _restart,
    "stacks": _stacks,
}
