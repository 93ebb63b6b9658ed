"""Tables in HTML without scripts and style sheets, which need no trust."""

from __future__ import annotations

import html

CELL = "padding:1px 10px 1px 0;text-align:"


def html_table(titles: tuple[str, ...], rows: list[tuple[str, ...]], caption: str) -> str:
    """Return a table; its first column names things, the others are numbers."""

    def line(cells: tuple[str, ...], kind: str) -> str:
        sides = ["left"] + ["right" if kind == "td" else "left"] * (len(cells) - 1)
        inside = "".join(
            f'<{kind} style="{CELL}{side}">{html.escape(cell)}</{kind}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{inside}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<table aria-label="{caption}">{line(titles, "th")}{body}</table>'


def text_table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in plain text, its columns to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (titles, *rows)
    ]
    return "\n".join(lines)
