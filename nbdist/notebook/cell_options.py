"""The options of a cell that runs on ranks that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbdist.cell.names.packed_names import Wanted


@dataclass(frozen=True)
class CellOptions:
    """How `nbdist.notebook.clusters.Cluster.submit_cell` runs a cell."""

    ranks: Iterable[int] | None = None
    """The ranks to run on; all by default."""
    timeout: float | None = None
    """Seconds after which the cell is interrupted; None for no limit."""
    args: Sequence[str] = ()
    """Arguments of the program in the cell: `sys.argv` holds them behind the program's name."""
    number: int | None = None
    """The cell's execution count, which its tracebacks name; the cluster counts by default."""
    lines: int = 0
    """Lines of the notebook's cell before the code, for the line numbers of tracebacks."""
    output: str = "rank0"
    """What a viewer sees: ``rank0`` (the first of the ranks), ``all`` (every line labelled) or
    ``collapse`` (lines that are equal on all ranks once)."""
    autoreload: str = ""
    """Mode of IPython's autoreload to follow, ``''`` for none."""
    viewed: bool = False
    """Whether the caller will take all of `Job.events`."""
    wanted: Wanted | None = None
    """Names of the notebook to bring where the ranks lack them."""
    returns: Sequence[str] = ()
    """Names to pack for the notebook after the cell; see `Job.take_returned`."""
    background: bool = False
    """Whether the notebook goes on meanwhile, so that advice to interrupt would not help."""
