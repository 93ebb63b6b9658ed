"""The user's own modules: what the notebook reloads is reloaded on the ranks. Kernel and ranks."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")})
PACKAGES = ("site-packages", "dist-packages")
"""Folders of libraries, also of other environments in the import path."""
AUTORELOAD = "IPython.extensions.autoreload"

_reloads: dict[str, int] = {}
"""How often the notebook had reloaded a module when this rank had it last."""


def module_of(value: Any) -> ModuleType | None:
    """Return the user's own module that a module, function or class is or comes from."""
    name = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module if _is_own(module) else None


def _is_own(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return (
        isinstance(file, str)
        and getattr(module, "__spec__", None) is not None
        and not (file.startswith(LIBRARIES) or any(folder in file for folder in PACKAGES))
        and module.__name__.partition(".")[0] not in ("__main__", "nbdist")
    )


def is_replaced(value: Any) -> bool:
    """Return whether a function or class is not what its reloaded module has under this name."""
    if isinstance(value, ModuleType) or "." in value.__qualname__:
        return False
    return getattr(module_of(value), value.__name__, None) is not value


class Read:
    """How a module was read from its file."""

    def __init__(self, module: ModuleType) -> None:
        self._spec, self._code = module.__spec__, {*_code_of(module)}

    def is_last(self, module: ModuleType) -> bool:
        """Return whether the module has not been read again, completely or in part.

        `importlib.reload` makes a new spec, `%autoreload` may only exchange the code of functions.
        """
        if module.__spec__ is not self._spec:
            return False
        return AUTORELOAD not in sys.modules or self._code.issuperset(_code_of(module))


def _code_of(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods, without what others put there."""
    for value in list(vars(module).values()):
        inside = vars(value).values() if isinstance(value, type) else ()
        for one in (value, *inside):
            code = getattr(one, "__code__", None)
            if isinstance(code, CodeType) and code.co_filename == module.__file__:
                yield code


def with_imported(*modules: ModuleType) -> dict[str, ModuleType]:
    """Return modules after those of the user's own modules that they import in turn."""
    found: dict[str, ModuleType] = {}
    met: set[str] = set()

    def visit(module: ModuleType) -> None:
        met.add(module.__name__)
        for inner in _imported(module):
            if inner.__name__ not in met:
                visit(inner)
        found[module.__name__] = module

    for module in modules:
        if module.__name__ not in met:
            visit(module)
    return found


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    for value in list(vars(module).values()):
        if isinstance(value, (ModuleType, FunctionType, type)):
            inner = module_of(value)
            if inner is not None:
                yield inner


def reload_like_notebook(reloads: Mapping[str, int]) -> None:
    """Reload the modules that the notebook has reloaded since this process has read them."""
    for name, count in reloads.items():
        before, _reloads[name] = _reloads.get(name, 0), count
        if before != count and name in sys.modules:
            importlib.invalidate_caches()
            importlib.reload(sys.modules[name])
