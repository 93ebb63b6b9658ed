"""Tables in plain text, and in HTML without scripts and style sheets, which needs no trust."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = TypeVar("Row")
CELL = "padding:1px 10px 1px 0;text-align:"
GROUND = "background-color:#ffffff;color:#222222;padding:4px 8px"
"""As the pictures have it: some front ends (VS Code) show dark text on a dark ground otherwise."""


@dataclass(frozen=True, repr=False)
class Table(ABC, Generic[Row]):
    """Figures that a person looks at, and a program reads."""

    CAPTION: ClassVar[str]

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    """What a person should know before believing them."""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Row:
        return self.rows[place]

    def to_pandas(self) -> Any:  # a DataFrame
        """Return it as a pandas frame, a column for each field of a row.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas as pd  # a user's choice

        return pd.DataFrame([self._fields(row) for row in self.rows])

    def __repr__(self) -> str:
        return "\n".join([text_table(self._titles(), self._lines()), *self._words()])

    def _repr_html_(self) -> str:
        words = "".join(f"<div>{html.escape(line)}</div>" for line in self._words())
        return on_ground(html_table(self._titles(), self._lines(), self.CAPTION) + words)

    def _lines(self) -> list[tuple[str, ...]]:
        return [self._cells(row) for row in self.rows]

    def _words(self) -> list[str]:
        """Return the lines below it."""
        return self.notes

    def _fields(self, row: Row) -> dict[str, Any]:
        return asdict(row)  # type: ignore[call-overload,no-any-return]  # all rows are dataclasses

    @abstractmethod
    def _titles(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _cells(self, row: Row) -> tuple[str, ...]: ...


def on_ground(inside: str) -> str:
    """Return HTML that brings its own ground and colour, to be read in any theme."""
    return f'<div style="{GROUND}">{inside}</div>'


def html_table(titles: tuple[str, ...], rows: list[tuple[str, ...]], caption: str) -> str:
    """Return a table; its first column names things, the others are numbers."""

    def line(cells: tuple[str, ...], kind: str) -> str:
        sides = ["left"] + ["right" if kind == "td" else "left"] * (len(cells) - 1)
        inside = "".join(
            # A title that says nothing is none.
            f'<{kind if cell else "td"} style="{CELL}{side}">{html.escape(cell)}'
            f"</{kind if cell else 'td'}>"
            for cell, side in zip(cells, sides, strict=True)
        )
        # JupyterLab has a ground of its own for every other row, dark in its dark theme.
        return f'<tr style="background-color:transparent">{inside}</tr>'

    body = "".join(line(row, "td") for row in rows)
    return f'<table aria-label="{caption}" style="color:inherit">{line(titles, "th")}{body}</table>'


def text_table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in plain text, its columns to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (titles, *rows)
    ]
    return "\n".join(lines)
