"""What the hub knows of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.job.job import Death
    from nbdist.job.states import RankState
    from nbdist.wire.messages import Pulse


@dataclass
class Rank:
    """One training process. The hub's thread writes it."""

    rank: int
    incarnation: int = 0
    """How many processes have been this rank before."""
    host: str = ""
    pid: int = 0
    created: float = 0.0
    """Start time of the process, which with the pid names it beyond doubt."""
    hellos: int = 0
    """Its sockets that have been heard of: the agent's, and the main thread's for cells."""
    state: RankState = "starting"
    device: str = ""
    gpu_memory: int | None = None
    """Bytes it has on its GPU, also while it is idle."""
    logs: Path | None = None
    """The folder its log is in."""
    log_end: int = 0
    """Up to where its log belongs to jobs that have ended."""
    death: Death | None = None
    pulse: Pulse | None = None
    """What it was doing when last heard of in this job."""

    @property
    def identity(self) -> bytes:
        """Name of its socket."""
        return f"{self.rank}.{self.incarnation}".encode()

    @property
    def alive(self) -> bool:
        """Whether it can be given work."""
        return self.state in ("idle", "busy")
