"""What a cell wants from the notebook: by its code, and by what its flags name."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.cell.names.bringing import Wanted
from nbdist.cell.names.used_names import mentioned, used

if TYPE_CHECKING:
    from collections.abc import Iterable


class Parsed(NamedTuple):
    """A cell as the notebook's IPython reads it."""

    source: str
    """Its Python; empty where it is something else, such as a `%%bash` cell."""
    code: CodeType


def wanted_by(
    shell: Any, cell: Parsed, *, forced: Iterable[str] = (), automatic: bool = True
) -> Wanted | None:
    """Return what a cell wants from the notebook; None if nothing.

    A cell for ranks that stay may want more: see `wanted_on_ranks`.

    Parameters
    ----------
    shell
        The notebook's IPython shell.
    cell
        The cell.
    forced
        Names to bring whatever the ranks have.
    automatic
        Whether to look for names the cell uses.
    """
    wanted = wanted_on_ranks(shell, cell, forced=forced, automatic=automatic)
    return wanted if wanted.forced or wanted.surely or wanted.maybe else None


def wanted_on_ranks(
    shell: Any, cell: Parsed, *, forced: Iterable[str] = (), automatic: bool = True
) -> Wanted:
    """Return what a cell wants from the notebook, and its code, which may use what ranks have.

    Parameters
    ----------
    shell, cell, forced, automatic
        As in `wanted_by`.
    """
    wanted = Wanted(
        shell.user_ns, forced=tuple(forced), code=cell.code, hidden=shell.user_ns_hidden,
        automatic=automatic,
    )  # fmt: skip
    # First what is quick, and enough for most cells.
    if automatic and any(wanted.has(name) for name in mentioned(cell.code)):
        found = used(cell.source, cell.code)
        wanted.surely = [name for name in found.surely if wanted.has(name)]
        wanted.maybe = [name for name in found.maybe if wanted.has(name)]
    return wanted
