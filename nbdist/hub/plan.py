"""How a script is to be launched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.launchers.scripted import Elastic


class Writable(Protocol):
    """A script that has not been written yet; see `nbdist.cell.script.Script`."""

    @property
    def cell_line(self) -> int:
        """Where the cell's first line stands."""

    def write(self, path: Path) -> None:
        """Write it and its data."""


@dataclass(frozen=True)
class Plan:
    """What is launched, and how."""

    script: Writable
    np: int
    launcher: str = "torchrun"
    output: str = "rank0"
    timeout: float | None = None
    returns: list[str] = field(default_factory=list)
    all_return: bool = False
    """Whether every rank returns those names, and not only the shown one."""
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

    @property
    def returning(self) -> list[int]:
        """The ranks whose names are returned."""
        return list(range(self.np)) if self.all_return else [0]
