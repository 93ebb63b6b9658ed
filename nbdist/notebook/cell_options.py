"""The options of a cell that runs on ranks that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbdist.cell.names.wanted_names import Wanted


@dataclass(frozen=True)
class CellOptions:
    """Options of `nbdist.notebook.clusters.Cluster.submit_cell`."""

    ranks: Iterable[int] | None = None
    """The ranks to run on; all by default."""
    timeout: float | None = None
    """Seconds after which the cell is interrupted; None for no limit."""
    args: Sequence[str] = ()
    """Arguments of the cell's program, in `sys.argv` after the program's name."""
    number: int | None = None
    """The cell's execution count, for its tracebacks; by default the cluster counts."""
    lines: int = 0
    """Lines of the notebook's cell before the code, for the line numbers of tracebacks."""
    output: str = "rank0"
    """Which output is shown: ``rank0`` (of the first of the ranks), ``all`` (every line with its
    rank) or ``collapse`` (a line that is equal on all ranks is shown once)."""
    autoreload: str = ""
    """The mode of IPython's autoreload on the ranks, ``''`` for none."""
    futures: int = 0
    """The compiler's flags of what the notebook has imported from `__future__`."""
    viewed: bool = False
    """Whether the caller will read all of `Job.events`."""
    wanted: Wanted | None = None
    """Names of the notebook to copy to the ranks that lack them."""
    returns: Sequence[str] = ()
    """Names to return to the notebook after the cell; see `Job.take_returned`."""
    kept: Sequence[str] = ()
    """Those of `returns` that neither the cell nor a function binds: they stay what they are."""
    background: bool = False
    """Whether the cell runs in the background, so that the advice to interrupt would not help."""
