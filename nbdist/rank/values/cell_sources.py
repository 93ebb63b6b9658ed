"""Sends the text of cells along with their functions, for tracebacks and `inspect`.

A function that is defined in a notebook is in no file. IPython puts the text of each cell into
`linecache`, where Python looks for the text of files; here a pickled function takes the text of its
cell along.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

from nbdist.wire.parcel_format import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS = 4
"""The length of a complete `linecache` entry; a lazy entry is shorter."""


def taken(files: Iterable[str]) -> list[Source]:
    """Return the texts of the files that are cells of this process."""
    found, numbers = [], _numbers()
    for file in files:
        entry: Any = linecache.cache.get(file)
        # An entry without a modification time is not from a file.
        if entry is not None and len(entry) == FIELDS and entry[1] is None:
            found.append(Source(file, "".join(entry[2]), numbers.get(file, 0)))
    return found


def put(sources: Iterable[Source]) -> None:
    """Put these texts where Python finds them."""
    numbers = _numbers()
    for source in sources:
        lines = source.text.splitlines(keepends=True)
        linecache.cache.setdefault(source.file, (len(source.text), None, lines, source.file))
        if source.number:
            numbers.setdefault(source.file, source.number)


def _numbers() -> dict[str, int]:
    """Return IPython's map of cells' file names to execution counts, for tracebacks."""
    from IPython.core.interactiveshell import InteractiveShell

    if not InteractiveShell.initialized():
        return {}
    numbers: dict[str, int] = getattr(InteractiveShell.instance().compile, "_filename_map", {})
    return numbers
