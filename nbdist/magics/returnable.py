"""Looks, before a cell runs, at the names that it is to return. Kernel's main thread."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from nbdist.cell.names.used_names import bound
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.notebook import current_cluster
from nbdist.notebook.session import session
from nbdist.rank.looking.rank_names import OURS

if TYPE_CHECKING:
    from typing import Any

    from nbdist.cell.names.wanted_names import Parsed

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
    """Return those names to which the cell binds nothing, and no function does.

    Not `trainer.model`: whoever has `trainer` may set its attribute.
    """
    typed = _typed(shell, cell) if paths else ""
    if not typed or UNSEEN.search(cell):
        return []
    made = {*bound(parsed.code), *brought, *WORD.findall(" ".join(GLOBAL.findall(typed)))}
    return [path for path in paths if WORD.fullmatch(path) and path not in made]


def _typed(shell: Any, cell: str) -> str:
    """Return all that was typed in this notebook; '' if it may bind names without their mention."""
    history = shell.history_manager
    typed = "\n".join(history.input_hist_raw) if history else ""
    return "" if cell.strip() not in typed or HIDDEN.search(typed) else typed
