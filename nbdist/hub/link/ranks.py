"""`Rank`: the hub's record of a rank's process and state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.job.deaths import Death
    from nbdist.job.states import RankState
    from nbdist.wire.messages import Pulse


@dataclass
class Rank:
    """A rank as the hub knows it. The hub's thread writes."""

    rank: int
    logs: Path
    """The folder of its log."""
    incarnation: int = 0
    """How many processes were this rank before."""
    host: str = ""
    pid: int = 0
    created: float = 0.0
    """The process's start time, which with the pid identifies it."""
    hellos: int = 0
    """The number of its sockets that have connected: the agent's and the main thread's."""
    state: RankState = "starting"
    device: str = ""
    gpu_memory: int | None = None
    """Bytes on its GPU, known also while it is idle."""
    log_end: int = 0
    """Where the output of ended jobs ends in its log."""
    death: Death | None = None
    spoilt: bool = False
    """Whether an error has made its GPU unusable for its process."""
    pulse: Pulse | None = None
    """Its last report in the present job."""

    @property
    def identity(self) -> bytes:
        """The identity of its socket."""
        return f"{self.rank}.{self.incarnation}".encode()

    @property
    def alive(self) -> bool:
        """Whether its process is there, and answers."""
        return self.state in ("idle", "busy")

    @property
    def sound(self) -> bool:
        """Whether the rank can run further cells; otherwise its process is replaced first."""
        return self.alive and not self.spoilt
