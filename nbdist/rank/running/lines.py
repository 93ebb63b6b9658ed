"""Shifts a cell's code so that its line numbers on the ranks are those in the notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAGIC = re.compile(r"\s*%%(\S+)[^\n]*\n?")
PYTHON_MAGICS = frozenset({"capture", "prun", "time", "timeit"})
"""Cell magics with Python code below them."""
FILLER = "# %%distributed\n"


@dataclass(frozen=True)
class Aligned:
    """A cell with the same line numbers as in the notebook."""

    code: str
    python: str
    """The part that is certainly Python, aligned."""
    magic_line: int | None = None
    """The line of the cell's first magic; for IPython the whole cell is this line."""


def align(code: str, lines: int) -> Aligned:
    """Insert a comment for each of the `lines` lines above `code` in the notebook's cell.

    A cell magic must stay first, so the comments, and one for its own line, go below it.
    """
    if not code.strip():
        return Aligned("", "")
    head = MAGIC.match(code)
    if head is None:
        # IPython removes leading empty lines.
        empty = 0 if lines else code[: len(code) - len(code.lstrip())].count("\n")
        aligned = FILLER * (lines + empty) + "\n".join(code.split("\n")[empty:])
        return Aligned(aligned, aligned)
    above = lines + head[0].count("\n")
    body = code[head.end() :]
    if head[1] not in PYTHON_MAGICS or MAGIC.match(body):
        return Aligned(code, "", above)
    body = FILLER * above + body
    return Aligned(head[0] + body, body, above)
