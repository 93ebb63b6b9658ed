"""Lists the notebook's names that a cell needs, from its code and its flags (`--bring`)."""

from __future__ import annotations
import __future__

import ast
import functools
import operator
import re
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.cell.names.used_names import annotating, mentioned, used
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.running.lines import PYTHON_MAGICS
from nbdist.rank.running.plain_cells import transformed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


IPYTHONS = re.compile(r"_{1,3}|_(i{1,3}|oh|dh|sh|ih|exit_code)|_i?\d+|__\w+__|In|Out")
"""Names that IPython and Python themselves bind."""
FUTURES: int = functools.reduce(
    operator.or_, (getattr(__future__, each).compiler_flag for each in __future__.all_feature_names)
)
"""The compiler's flags of all that a cell can import from `__future__`."""


@dataclass
class Wanted:
    """The names that a cell needs from the notebook."""

    space: Mapping[str, Any]
    """The namespace in which the names are looked up."""
    surely: Iterable[str] = ()
    maybe: Iterable[str] = ()
    """Names that are left out if their values cannot be pickled."""
    mentions: Iterable[str] = ()
    """Names in annotations that Python does not evaluate; left out, too, with what they use."""
    forced: Iterable[str] = ()
    """Names that are sent even if the ranks already have values for them."""
    code: CodeType | None = None
    source: str = ""
    """The text of this code."""
    python: CodeType | None = None
    """The same code, or the Python below its magic (`%%time`)."""
    read: Iterable[str] = ()
    """Names that this Python surely reads."""
    hidden: Mapping[str, Any] = field(default_factory=dict)
    """Names in the notebook that IPython defined, with their values."""
    automatic: bool = True
    """Whether to send names other than `forced`, too."""

    def has(self, name: str) -> bool:
        """Return whether the user defined `name`, so that it can be sent."""
        if name not in self.space or name in OURS or IPYTHONS.fullmatch(name):
            return False
        return name not in self.hidden or self.hidden[name] is not self.space[name]


class Parsed(NamedTuple):
    """A cell as IPython transforms and compiles it."""

    source: str
    """The Python code; empty if the cell is not Python, such as a `%%bash` cell."""
    code: CodeType


def below_magic(shell: Any, cell: Parsed) -> Parsed:
    """Return the Python below a cell magic such as `%%time`; the cell itself if there is none."""
    if "run_cell_magic(" not in cell.source:
        return cell
    match ast.parse(cell.source).body:
        case [ast.Expr(ast.Call(func, [ast.Constant(magic), _, ast.Constant(str(text))]))] if (
            isinstance(func, ast.Attribute) and magic in PYTHON_MAGICS
        ):
            with suppress(SyntaxError):  # the magic will say so
                return below_magic(shell, parsed(transformed(shell, text)))
    return cell


def parsed(source: str, futures: int = 0) -> Parsed:
    """Compile Python code that IPython has made from a cell, with flags of `FUTURES`."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | futures
    return Parsed(source, compile(source, "<cell>", "exec", flags, dont_inherit=True))


def wanted_by(
    shell: Any, cell: Parsed, *, forced: Iterable[str] = (), automatic: bool = True
) -> Wanted | None:
    """Return the names that a cell needs from the notebook; None if it needs none.

    A cell for persistent ranks may need more names: see `wanted_on_ranks`.

    Parameters
    ----------
    shell
        The notebook's IPython shell.
    cell
        The cell.
    forced
        Names to send even if the ranks have values for them.
    automatic
        Whether to include the names that the cell uses.
    """
    wanted = wanted_on_ranks(shell, cell, forced=forced, automatic=automatic)
    return wanted if wanted.forced or wanted.surely or wanted.maybe or wanted.mentions else None


def wanted_on_ranks(
    shell: Any, cell: Parsed, *, forced: Iterable[str] = (), automatic: bool = True
) -> Wanted:
    """Return the names that a cell needs from the notebook, and its code, for names on the ranks.

    Parameters
    ----------
    shell, cell, forced, automatic
        As in `wanted_by`.
    """
    wanted = Wanted(
        shell.user_ns, forced=tuple(forced), code=cell.code, source=cell.source,
        hidden=shell.user_ns_hidden, automatic=automatic,
    )  # fmt: skip
    inner = below_magic(shell, cell)
    wanted.python = inner.code
    # A quick test first, which is enough for most cells.
    if automatic and any(map(wanted.has, (*mentioned(cell.code), *annotating(cell.code)))):
        found = used(cell.source, cell.code)
        wanted.surely = [name for name in found.surely if wanted.has(name)]
        wanted.maybe = [name for name in found.maybe if wanted.has(name)]
        wanted.mentions = [name for name in found.mentions if wanted.has(name)]
        if inner is not cell:
            found = used(inner.source, inner.code)
        wanted.read = [name for name in found.surely if wanted.has(name)]
    return wanted
