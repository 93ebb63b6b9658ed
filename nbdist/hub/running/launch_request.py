"""Makes a plan of what a cell's flags or `nbdist.launch` ask for."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbdist.backends import xla
from nbdist.hub.running.launch_plan import Plan
from nbdist.launchers.rank_counts import check_size, default_size
from nbdist.launchers.scripts.hosts import check_slots, far, taken


@dataclass(frozen=True)
class LaunchRequest:
    """How many ranks a script should have, and where."""

    np: int | None
    """The number of ranks; None if it was not given."""
    backend: str
    launcher: str
    hosts: dict[str, int] = field(default_factory=dict)
    """The slots of each host; empty for this machine only."""
    max_restarts: int = 0

    def size(self, usual: int | None = None) -> int:
        """Return the number of ranks.

        Parameters
        ----------
        usual
            The number if none was given; by default one for each GPU, or 2.

        Raises
        ------
        UsageError
            If there cannot be so many ranks.
        """
        if self.hosts:
            size = sum(self.hosts.values()) if self.np is None else self.np
            check_slots(self.hosts, size)
            return size
        if self.backend == "xla":
            return xla.check_processes(self.np)
        if self.np is not None:
            return check_size(self.np)
        return check_size(default_size(None, None) if usual is None else usual)

    def plan(self, cell_line: int, size: int) -> Plan:
        """Return the plan to launch the script; the caller adds its other wishes to the plan.

        Parameters
        ----------
        cell_line
            The line of the script with the cell's first line.
        size
            What `size` has returned, or 1 for a program that makes its own workers.
        """
        return Plan(
            cell_line, size, launcher=self.launcher, max_restarts=self.max_restarts,
            hosts=self.hosts, far=far(taken(self.hosts, size)),
            environ=dict(xla.PROCESS_ENVIRON) if self.backend == "xla" else {},
        )  # fmt: skip


def script_launcher(backend: str) -> str:
    """Return the launcher that starts scripts with this backend if none is named."""
    return "horovodrun" if backend == "horovod" else "torchrun"
