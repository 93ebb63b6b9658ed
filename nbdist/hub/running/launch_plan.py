"""The plan of a launch: how a script is to be started."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from nbdist.errors import UsageError
from nbdist.launchers.host.engines import working_directory
from nbdist.launchers.scripts.launcher import Elastic

SCRIPT = "script.py"
"""The script's name in the job's folder."""


def _existing_directory() -> str:
    """Return the notebook's working directory, in which the script will run."""
    found = working_directory()
    if not found:
        raise UsageError(
            "the notebook's working directory has been removed: `%cd` to an existing one"
        )
    return found


@dataclass(frozen=True)
class Plan:
    """The description of a launch; the script itself is in the job's folder."""

    cell_line: int
    """The line of the script with the cell's first line."""
    np: int
    launcher: str = "torchrun"
    output: str = "rank0"
    timeout: float | None = None
    returns: list[str] = field(default_factory=list)
    all_return: bool = False
    """Whether every rank returns the names, not only the shown one."""
    shows_last: bool = False
    """Whether the cell ends with an expression whose value a notebook shows."""
    label: str = ""
    """The code's name in tracebacks; by default the notebook's cell."""
    max_restarts: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    """The slots of each host; empty for this machine."""
    far: list[str] = field(default_factory=list)
    """The hosts other than this machine."""
    elastic: Elastic | None = None
    """The settings of an elastic job, which goes on without ranks that die."""
    cold: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    passed_on: list[str] = field(default_factory=list)
    """The launcher's own flags."""
    arguments: list[str] = field(default_factory=list)
    """The script's arguments, `sys.argv[1:]`."""
    cwd: str = field(default_factory=_existing_directory)
    sys_path: list[str] = field(default_factory=lambda: list(sys.path))
    """The ranks' import path, after the job's folder."""

    @property
    def returning(self) -> list[int]:
        """The ranks that return names."""
        return list(range(self.np)) if self.all_return else [0]
