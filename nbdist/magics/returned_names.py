"""Binds in the notebook what a cell returns. Kernel's main thread."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.backends.models.variable_paths import last_name
from nbdist.cell.names.used_names import bound
from nbdist.errors import NbdistError
from nbdist.machine.amounts import in_bytes
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.notebook import current_cluster
from nbdist.notebook.names_both_ways import cannot_return
from nbdist.notebook.session import session
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.values.parcels import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.cell.names.wanted_names import Parsed
    from nbdist.job.job import Job
    from nbdist.wire.parcel_format import Offer


HIDDEN = re.compile(
    r"import\s*\*|%(run|load|store|pylab|macro)\b"
    r"|\b(exec|eval|globals|locals|vars|user_ns|__main__|get_ipython)\b"
)
"""Code that may bind names that it does not mention."""
FLAGS = re.compile(r"^%%?dist.*$", re.MULTILINE)
UNSEEN = re.compile(r"^\s*[%!]|:=", re.MULTILINE)
"""Code that binds names elsewhere than in the cell's own statements."""
GLOBAL = re.compile(r"\bglobal\b.*")
WORD = re.compile(r"[^\W\d]\w*")


def check_returned(shell: Any, cell: str, parsed: Parsed, paths: list[str]) -> None:  # IPython's
    """Raise if a cell is to return a name that nothing in the notebook has ever mentioned.

    Any other name may be bound by a function that the cell calls.
    """
    typed = _typed(shell, cell) if paths else ""
    if not typed:
        return
    told = {*WORD.findall(FLAGS.sub("", typed)), *OURS}
    unknown = [name for path in paths for name in WORD.findall(path)[:1] if name not in told]
    unknown = [name for name in unknown if name not in shell.user_ns]
    if unknown and session.has_cluster():
        there = current_cluster.cluster().known_there(unknown)
        unknown = [name for name in unknown if name not in there]
    for name in unknown:
        near = difflib.get_close_matches(name, bound(parsed.code), n=1)
        meant = f"; did you mean `{near[0]}`?" if near else ""
        raise UsageMistake(
            f"`{name}` cannot be returned: neither this cell nor an earlier one binds it{meant} "
            "(nothing was started)"
        )


def kept_names(
    shell: Any, cell: str, parsed: Parsed, paths: list[str], brought: list[str]
) -> list[str]:
    """Return those paths to whose names the cell binds nothing, and no function does."""
    typed = _typed(shell, cell) if paths else ""
    if not typed or UNSEEN.search(cell):
        return []
    made = {*bound(parsed.code), *brought, *WORD.findall(" ".join(GLOBAL.findall(typed)))}
    return [path for path in paths if not made.intersection(WORD.findall(path))]


def _typed(shell: Any, cell: str) -> str:
    """Return all that was typed in this notebook; '' if it may bind names without their mention."""
    history = shell.history_manager
    typed = "\n".join(history.input_hist_raw) if history else ""
    return "" if cell.strip() not in typed or HIDDEN.search(typed) else typed


class Between(Protocol):
    """Brings values that ranks have packed into the notebook."""

    def take(self, offer: Offer) -> dict[str, Any]:
        """Unpack the values."""

    def bind(self, values: dict[str, Any], space: dict[str, Any]) -> None:
        """Bind the values in the notebook's namespace."""


class FromScript:
    """Brings values that a script returns into the notebook."""

    def take(self, offer: Offer) -> dict[str, Any]:
        """Unpack the values.

        Raises
        ------
        NbdistError
            If a value cannot be unpickled here.
        """
        return unpacked(offer.parcel, offer.buffers)

    def bind(self, values: dict[str, Any], space: dict[str, Any]) -> None:
        """Bind the values in the notebook's namespace."""
        space.update({last_name(path): value for path, value in values.items()})


def bound_as(path: str) -> str:
    """Say to which name what is at a path is bound."""
    name = last_name(path)
    return path if name == path else f"{path} as `{name}`"


def bind_returned(
    between: Between, job: Job, space: dict[str, Any], tell: Callable[[str], Any]
) -> None:
    """Bind the values that a job has packed for the notebook, and report their sizes.

    From then on the packed data lives only as long as the values. Main thread.
    """
    offer = job.take_returned()
    if offer is None:
        return
    try:
        values = between.take(offer)
    except NbdistError as err:
        raise UsageMistake(f"nothing was returned: {err}") from err
    between.bind(values, space)
    if values:
        listed = ", ".join(f"{bound_as(name)} ({in_bytes(offer.sizes[name])})" for name in values)
        tell(f"Returned from rank {offer.rank}: {listed}.")
    refused = cannot_return(offer)
    del offer, values  # an error's traceback must not keep them in memory
    if refused:
        raise UsageMistake(refused)
