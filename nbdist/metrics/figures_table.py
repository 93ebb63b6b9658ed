"""A table of figures that the Python API returns, for reading, for programs and for pandas."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from nbdist.machine.tables import html_table, on_ground, text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = TypeVar("Row")


@dataclass(frozen=True, repr=False)
class Table(ABC, Generic[Row]):
    """A table of figures: text or HTML for people, rows for programs."""

    CAPTION: ClassVar[str]

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    """Cautions about the figures, which are shown below the table."""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Row:
        return self.rows[place]

    def to_pandas(self) -> Any:  # a DataFrame
        """Return the table as a pandas frame, with a column for each field of a row.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        import pandas as pd  # a user's choice

        return pd.DataFrame([self._fields(row) for row in self.rows])

    def __repr__(self) -> str:
        return "\n".join([text_table(self._titles(), self._lines(), figures=True), *self._words()])

    def _repr_html_(self) -> str:
        words = "".join(f"<div>{html.escape(line)}</div>" for line in self._words())
        return on_ground(html_table(self._titles(), self._lines(), self.CAPTION) + words)

    def _lines(self) -> list[tuple[str, ...]]:
        return [self._cells(row) for row in self.rows]

    def _words(self) -> list[str]:
        """Return the lines below the table."""
        return self.notes

    def _fields(self, row: Row) -> dict[str, Any]:
        return asdict(row)  # type: ignore[call-overload,no-any-return]  # all rows are dataclasses

    @abstractmethod
    def _titles(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _cells(self, row: Row) -> tuple[str, ...]: ...
