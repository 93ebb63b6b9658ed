"""`RankSpec`: everything that a new process needs to become a persistent rank."""

from __future__ import annotations

import os

import msgspec

from nbdist.backends.groups.recovery import Recovery
from nbdist.wire.channel import Keys

CLUSTER_NAME = "TORCHELASTIC_RUN_ID"
"""Environment variable with the cluster's id, in every rank and in processes that ranks start."""
JOB_NAME = "NBDIST_JOB"
"""The same for programs that libraries must not take for a launcher's workers."""


class RankSpec(msgspec.Struct, frozen=True):
    """Passed to a new rank over a private socket, never on a command line or in a file."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str
    incarnation: int
    """How many processes were this rank before."""
    backend: str
    recovery: Recovery
    """The result of the probe of torch so far."""
    url: str
    """The address where the hub listens."""
    keys: Keys
    cells: str
    """The path of the hub's socket for cells."""
    folder: str
    """The cluster's folder, with engine logs and stack dumps of this host."""
    temp: str
    """The folder for multiprocessing's sockets; removed with the cluster."""
    engine: str
    """ipyparallel's connection info for engines, as JSON."""
    profile_dir: str
    cluster_id: str
    cwd: str
    environ: dict[str, str]
    """Further environment variables, besides torchrun's."""
    threads: int
    """Threads that a rank may use for an operation: the cores divided by the host's ranks."""

    def torchrun_environ(self) -> dict[str, str]:
        """Return the environment variables of a torchrun worker, which libraries expect."""
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
            # No agent serves a store at this port, so rank 0 must start one. Processes that ranks
            # start (for example `mp.spawn` with its own port) then do not wait for our store.
            "TORCHELASTIC_USE_AGENT_STORE": False,
            CLUSTER_NAME: self.cluster_id,
            # Equal on all ranks, also on a replaced one: scripts and libraries compare it, or use
            # it in names that ranks share.
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", self.threads),
        }
        return {name: str(value) for name, value in names.items()}
