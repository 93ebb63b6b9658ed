"""The cells that functions come from: tracebacks show their lines, and `inspect` finds them.

What is defined in a notebook lies in no file. IPython keeps the text of each cell where Python
looks for that of files; a function that travels takes the text of its cell along.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

from nbdist.wire.parcel import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS = 4
"""Of an entry that is more than a promise to look for a text."""


def taken(files: Iterable[str]) -> list[Source]:
    """Return the texts of those files that are cells of this process."""
    found, numbers = [], _numbers()
    for file in files:
        entry: Any = linecache.cache.get(file)
        # One without a time of change was never a file.
        if entry is not None and len(entry) == FIELDS and entry[1] is None:
            found.append(Source(file, "".join(entry[2]), numbers.get(file, 0)))
    return found


def put(sources: Iterable[Source]) -> None:
    """Have Python find these texts."""
    numbers = _numbers()
    for source in sources:
        lines = source.text.splitlines(keepends=True)
        linecache.cache.setdefault(source.file, (len(source.text), None, lines, source.file))
        if source.number:
            numbers.setdefault(source.file, source.number)


def _numbers() -> dict[str, int]:
    """Return the execution counts by which IPython's tracebacks call the cells."""
    from IPython.core.interactiveshell import InteractiveShell

    if not InteractiveShell.initialized():
        return {}
    numbers: dict[str, int] = getattr(InteractiveShell.instance().compile, "_filename_map", {})
    return numbers
