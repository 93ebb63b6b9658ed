"""Drops preloaded modules of the user's that were edited since, so that a run imports them again.

Installed packages count as unchanged. Used in the warm process and its forks.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

INSTALLED = [
    Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
]
_own: dict[str, tuple[Path, int]] = {}
"""For each of the user's modules, its file and the time of the file's last change."""


def remember(names: Iterable[str]) -> None:
    """Record modules that were imported just now."""
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(path, str) and not any(Path(path).is_relative_to(at) for at in INSTALLED):
            _own[name] = Path(path), _changed_at(Path(path))


def forget() -> None:
    """If one of them has changed, remove all from `sys.modules`, to be imported again."""
    if all(_changed_at(path) == changed for path, changed in _own.values()):
        return
    for name in _own:
        sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)
    _own.clear()


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1  # no such file
