"""A plugin of coverage: what is installed is imported untraced, and so in the usual time.

To trace is to hear of each line of all code (Python 3.11 knows nothing finer): `import torch` and
`import tensorflow` take half as long again, and each kernel of a test imports one of them. None of
their lines is counted.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


class Untraced:
    """Stands before Python's finder of modules in `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as Python does; one that is installed is run without a tracer."""
        spec = PathFinder.find_spec(name, path, target) if sys.gettrace() else None
        if spec and spec.loader and "site-packages" in (spec.origin or ""):
            spec.loader.exec_module = partial(untraced, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def untraced(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module without this thread's tracer, and put it back, which coverage is made for."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        run(module)
    finally:
        sys.settrace(tracer)


def coverage_init(reg: Any, options: dict[str, Any]) -> None:
    """Be the plugin: coverage calls this when it starts in a process."""
    del reg, options
    if Untraced not in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), Untraced)
