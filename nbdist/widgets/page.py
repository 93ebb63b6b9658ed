"""The page's part of the live metrics: where it lies, and whether it is there."""

from __future__ import annotations

import functools
from pathlib import Path

STATIC = Path(__file__).parent / "static"
MODULE, STYLE = STATIC / "metrics.js", STATIC / "metrics.css"


def built() -> bool:
    """Whether the page's part is there; it is not where nbdist was installed without Node.js."""
    return _there(MODULE, STYLE)


@functools.cache  # every cell asks
def _there(*files: Path) -> bool:
    return all(file.exists() for file in files)
