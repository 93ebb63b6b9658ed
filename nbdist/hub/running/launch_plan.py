"""The plan of a launch: how a script is to be started."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from nbdist.errors import UsageError
from nbdist.launchers.host.engines import working_directory
from nbdist.launchers.scripts.launcher import Elastic

SCRIPT = "script.py"
"""Its name in the job's folder."""


def _existing_directory() -> str:
    """Return the notebook's working directory, in which the script will run."""
    found = working_directory()
    if not found:
        raise UsageError(
            "the notebook's working directory has been removed: `%cd` to one that is there"
        )
    return found


@dataclass(frozen=True)
class Plan:
    """What is launched, and how; the script itself lies in the job's folder."""

    cell_line: int
    """Where the cell's first line stands in the script."""
    np: int
    launcher: str = "torchrun"
    output: str = "rank0"
    timeout: float | None = None
    returns: list[str] = field(default_factory=list)
    all_return: bool = False
    """Whether every rank returns those names, and not only the shown one."""
    shows_last: bool = False
    """Whether the cell ends with an expression whose value a notebook shows."""
    label: str = ""
    """What tracebacks call the code; by default the notebook's cell."""
    max_restarts: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    """Slots by host; this machine if it is empty."""
    far: list[str] = field(default_factory=list)
    """Those of them that are not this machine."""
    elastic: Elastic | None = None
    """How ranks may come and go, if they may; the job goes on without those that die."""
    cold: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    passed_on: list[str] = field(default_factory=list)
    """Flags of the launcher's own."""
    arguments: list[str] = field(default_factory=list)
    """What the script finds in `sys.argv` behind its name."""
    cwd: str = field(default_factory=_existing_directory)
    sys_path: list[str] = field(default_factory=lambda: list(sys.path))
    """Where the ranks look for modules, behind the job's folder."""

    @property
    def returning(self) -> list[int]:
        """The ranks whose names are returned."""
        return list(range(self.np)) if self.all_return else [0]
