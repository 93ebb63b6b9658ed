"""The paths of the live metrics' JavaScript and CSS, and whether they were built."""

from __future__ import annotations

import functools
from pathlib import Path

STATIC = Path(__file__).parent / "static"
MODULE, STYLE = STATIC / "metrics.js", STATIC / "metrics.css"


def built() -> bool:
    """Whether JavaScript and CSS exist; they do not if nbdist was installed without Node.js."""
    return _there(MODULE, STYLE)


@functools.cache  # called for every cell
def _there(*files: Path) -> bool:
    return all(file.exists() for file in files)
