"""The user's own modules among those that were preloaded: a run begins with what is on disk.

Installed packages are taken to stay as they are. The warm process and its forks.
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
"""By module, its file and when that was changed last."""


def remember(names: Iterable[str]) -> None:
    """Take note of modules that were imported just now."""
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(path, str) and not any(Path(path).is_relative_to(at) for at in INSTALLED):
            _own[name] = Path(path), _changed_at(Path(path))


def forget() -> None:
    """Forget them all if one has changed since: whoever imports them has them anew."""
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
        return -1  # no file's
