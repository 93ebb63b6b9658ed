"""The kernel's clusters and jobs as others see them, and what others may do with them.

`begin` lets the hub's thread write the file of state (`nbdist.hub.beacon`); commands run on threads
of their own, so they may do what any thread may: no cell, and nothing that the notebook's main
thread alone may touch.
"""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING, Any

import psutil
from ipykernel.connect import get_connection_file

from nbdist import clusters, scripts
from nbdist.errors import UsageError
from nbdist.hub.beacon import Beacon
from nbdist.hub.jobs import how_died
from nbdist.hub.loop import hub_loop
from nbdist.widgets import seen
from nbdist.wire.record import BarRecord, ClusterRecord, JobRecord, RankRecord, Record

if TYPE_CHECKING:
    from nbdist.clusters import Cluster
    from nbdist.hub.jobs import Job
    from nbdist.hub.ranks import Rank

MOST_ENDED = 5
"""Jobs that have ended are shown, the last ones."""
MOST_METRICS = 4
_KERNEL = re.compile(r"kernel-([0-9a-f-]{36})\.json$")
_beacon: Beacon | None = None


def begin() -> None:
    """Be seen from now on; does not wait."""
    global _beacon  # one for the process
    if _beacon is None:
        _beacon = Beacon(_tell, COMMANDS)
        hub_loop().soon(_beacon.start())


def end() -> None:
    """Be seen no more."""
    global _beacon  # see begin
    beacon, _beacon = _beacon, None
    if beacon is not None:
        hub_loop().wait(beacon.stop())


# -- what is seen; the hub's thread ----------------------------------------------------------------


def _tell() -> Record:
    assert _beacon is not None
    me = psutil.Process()
    ours = [(cluster, job) for cluster in clusters.living() for job in cluster.jobs()]
    jobs = [_job(job, cluster.id, "engines") for cluster, job in _recent(ours)]
    own = [(None, job) for job in scripts.jobs()]
    return Record(
        id=_beacon.id,
        pid=me.pid,
        created=me.create_time(),
        host=socket.gethostname(),
        kernel=_kernel(),
        notebook=os.environ.get("JPY_SESSION_NAME", ""),
        control=_beacon.control,
        clusters=[_cluster(cluster) for cluster in clusters.living()],
        jobs=jobs + [_job(job, "", "script") for _, job in _recent(own)],
    )


def _recent(jobs: list[tuple[Any, Job]]) -> list[tuple[Any, Job]]:
    """Return all jobs that have not ended, and the last of those that have."""
    ended = [each for each in jobs if each[1].done][-MOST_ENDED:]
    return [each for each in jobs if not each[1].done or each in ended]


def _kernel() -> str:
    try:
        found = _KERNEL.search(get_connection_file())
    except RuntimeError:  # plain Python, or a terminal
        return ""
    return found[1] if found else ""


def _cluster(cluster: Cluster) -> ClusterRecord:
    return ClusterRecord(
        id=cluster.id,
        np=cluster.np,
        backend=cluster.backend,
        launcher="engines",
        state="lost" if cluster.lost else "running",
        created=cluster.created,
        ranks=[_rank(rank) for rank in cluster.ranks],
    )


def _rank(rank: Rank) -> RankRecord:
    told = RankRecord(
        rank.rank, rank.state, rank.state, host=rank.host, pid=rank.pid, device=rank.device
    )
    if rank.death is not None:
        told.words = how_died(rank.death)
    elif rank.pulse is not None:
        taken = rank.pulse.vitals
        told.line, told.words = rank.pulse.line, seen.doing(rank.pulse)
        told.cpu, told.memory = taken.cpu, taken.rss
        told.gpu, told.gpu_memory = taken.gpu, taken.gpu_memory
    return told


def _job(job: Job, cluster: str, launcher: str) -> JobRecord:
    looked = seen.look(job)
    return JobRecord(
        id=job.id,
        number=job.number,
        state=job.state,
        ranks=[RankRecord(row.rank, job.state, row.state, host=row.host, device=row.device,
                          cpu=row.cpu, memory=row.memory, gpu=row.gpu, gpu_memory=row.gpu_memory)
               for row in looked.ranks],
        first_line=next((line for line in job.code.splitlines() if line.strip()), ""),
        launcher=launcher,
        cluster=cluster,
        created=job.created,
        began=job.began,
        seconds=job.seconds,
        told=job.told(),
        reports=job.reports,
        straggler=looked.straggler,
        bars=[BarRecord(bar.label, bar.done, bar.total, bar.rate, bar.samples, bar.left)
              for bar in looked.bars],
        metrics={curve.name: seen.finite(curve.latest)
                 for panel in looked.panels for _, curve in panel.curves},
    )  # fmt: skip


# -- what may be done; any thread ------------------------------------------------------------------


def _named(cluster: str) -> Cluster:
    for each in clusters.living():
        if each.id == cluster:
            return each
    raise UsageError(f"cluster {cluster} is gone")


def _find_job(job: str) -> Job:
    for each in [*scripts.jobs(), *(j for c in clusters.living() for j in c.jobs())]:
        if each.id == job:
            return each
    raise UsageError(f"job {job} is gone")


def _interrupt(job: str) -> None:
    _find_job(job).cancel()


def _stop(cluster: str) -> None:
    _named(cluster).stop()


def _restart(cluster: str, rank: int) -> dict[str, Any]:
    return {"lacks": sorted(_named(cluster).restart([rank]).get(rank, {}))}


def _stacks(cluster: str = "", job: str = "") -> dict[str, Any]:
    found = _find_job(job).stacks() if job else _named(cluster).stacks()
    return {"stacks": {str(rank): text for rank, text in found.items()}}


COMMANDS = {"interrupt": _interrupt, "stop": _stop, "restart": _restart, "stacks": _stacks}
