"""What a process must know to become a rank."""

from __future__ import annotations

import os

import msgspec

from nbdist.backends.groups.recovery import Recovery
from nbdist.wire.channel import Keys

CLUSTER_NAME = "TORCHELASTIC_RUN_ID"
JOB_NAME = "NBDIST_JOB"
"""The same of programs that libraries shall not take for a launcher's."""
"""Environment variable that holds the cluster's id in every rank and in what ranks start."""


class RankSpec(msgspec.Struct, frozen=True):
    """Handed to a rank at birth over a private socket, never on a command line or in a file."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str
    incarnation: int
    """How many processes have been this rank before."""
    backend: str
    recovery: Recovery
    """What this torch allows, as far as a rank must know it to begin."""
    url: str
    """Where the hub listens."""
    keys: Keys
    cells: str
    """Path of the hub's socket for cells."""
    folder: str
    """The cluster's own folder: engine logs and stack dumps of this host."""
    temp: str
    """Where multiprocessing may keep its sockets; removed with the cluster."""
    engine: str
    """ipyparallel's connection info for engines, as JSON."""
    profile_dir: str
    cluster_id: str
    cwd: str
    environ: dict[str, str]
    """Variables set besides the torchrun ones."""
    threads: int
    """Threads each rank may use for one operation (cores shared out over the host's ranks)."""

    def torchrun_environ(self) -> dict[str, str]:
        """Return the variables a torchrun worker finds, so that other libraries feel at home."""
        names = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "GROUP_RANK": 0,
            "GROUP_WORLD_SIZE": 1,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.world_size,
            "ROLE_NAME": "nbdist",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 0,
            # Nothing listens there: rank 0 of whoever meets there must. So children that ranks
            # start, `mp.spawn` with a port of its own say, do not wait for a store of ours.
            "TORCHELASTIC_USE_AGENT_STORE": False,
            CLUSTER_NAME: self.cluster_id,
            # Equal on all ranks, also on one that was replaced: scripts and libraries compare it,
            # or put it into names that ranks share.
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", self.threads),
        }
        return {name: str(value) for name, value in names.items()}
