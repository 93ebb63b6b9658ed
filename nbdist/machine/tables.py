"""Writes tables as plain text, and as HTML without scripts and style sheets.

Such HTML is shown also in a notebook that is not trusted. All tables of nbdist are written here.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

Cells = tuple[str, ...]
CELL = "padding:1px 10px 1px 0;text-align:"
GROUND = "background-color:#ffffff;color:#222222;padding:4px 8px"
"""The pictures' background: otherwise some front ends (VS Code) show dark text on a dark one."""


def text_table(titles: Cells, rows: Sequence[Cells], *, figures: bool = False) -> str:
    """Return a table in plain text.

    Parameters
    ----------
    titles
        The titles of the columns.
    rows
        The rows, each with a cell for every column.
    figures
        Whether the cells are numbers, which are aligned to the right; words to the left.
    """
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    align = str.rjust if figures else str.ljust
    lines = [
        "  ".join(align(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (titles, *rows)
    ]
    return "\n".join(lines)


def html_table(titles: Cells, rows: Sequence[Cells], caption: str) -> str:
    """Return a table in HTML; its first column names things, the others are numbers."""

    def line(cells: Cells, kind: str) -> str:
        sides = ["left"] + ["right" if kind == "td" else "left"] * (len(cells) - 1)
        inside = "".join(
            # An empty title is no heading.
            f'<{kind if cell else "td"} style="{CELL}{side}">{html.escape(cell)}'
            f"</{kind if cell else 'td'}>"
            for cell, side in zip(cells, sides, strict=True)
        )
        # JupyterLab gives every other row a background, which is dark in its dark theme.
        return f'<tr style="background-color:transparent">{inside}</tr>'

    body = "".join(line(row, "td") for row in rows)
    return f'<table aria-label="{caption}" style="color:inherit">{line(titles, "th")}{body}</table>'


def on_ground(inside: str) -> str:
    """Return HTML with its own background and text colour, readable in any theme."""
    return f'<div style="{GROUND}">{inside}</div>'
