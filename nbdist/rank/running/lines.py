"""Line numbers: a cell counts its lines on the ranks as it does in the notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAGIC = re.compile(r"\s*%%(\S+)[^\n]*\n?")
PYTHON_MAGICS = frozenset({"capture", "prun", "time", "timeit"})
"""Cell magics with Python under them."""
FILLER = "# %%distributed\n"


@dataclass(frozen=True)
class Aligned:
    """A cell whose lines stand where they stand in the notebook."""

    code: str
    python: str
    """What of it is Python for sure, aligned."""
    magic_line: int | None = None
    """Line of the cell magic it begins with; to IPython, the cell is this one line."""


def align(code: str, lines: int) -> Aligned:
    """Put comments where the notebook's cell has `lines` lines before `code`.

    A cell magic must stay in front; below it go comments for its own line, too.
    """
    if not code.strip():
        return Aligned("", "")
    head = MAGIC.match(code)
    if head is None:
        # IPython takes away empty lines that are the first.
        empty = 0 if lines else code[: len(code) - len(code.lstrip())].count("\n")
        aligned = FILLER * (lines + empty) + "\n".join(code.split("\n")[empty:])
        return Aligned(aligned, aligned)
    above = lines + head[0].count("\n")
    body = code[head.end() :]
    if head[1] not in PYTHON_MAGICS or MAGIC.match(body):
        return Aligned(code, "", above)
    body = FILLER * above + body
    return Aligned(head[0] + body, body, above)
