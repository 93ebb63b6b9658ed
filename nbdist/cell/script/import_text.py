"""Writes the import that binds a name of the notebook to its value."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.errors import UsageError
from nbdist.rank.values.kinds import attribute

if TYPE_CHECKING:
    from nbdist.cell.definitions.defined import Notebook


def import_of(name: str, value: Any, notebook: Notebook) -> str:
    """Return an import that binds `name` to `value`, if possible the notebook's own.

    Parameters
    ----------
    name
        The name in the notebook.
    value
        What it is bound to.
    notebook
        The imports in the notebook's cells.

    Returns
    -------
    str
        A statement; '' if no import binds the value.

    Raises
    ------
    UsageError
        If it is a module that cannot be imported.
    """
    for found in notebook.imports(name):
        if imported(found.module, found.name) is value:
            return _text(found.module, found.name, name)
    if isinstance(value, ModuleType):
        if imported(value.__name__) is not value:
            raise UsageError(f"the module {value.__name__!r} cannot be imported")
        return _text(value.__name__, "", name)
    place, own = attribute(value, "__module__"), attribute(value, "__qualname__")
    named = isinstance(place, str) and isinstance(own, str) and own.isidentifier()
    if named and place not in ("__main__", "builtins") and imported(place, own) is value:
        return _text(place, own, name)
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return _text("torch", str(value).removeprefix("torch."), name)
    own = attribute(value, "__name__")
    if getattr(builtins, str(own), None) is value and own != name:
        return f"from builtins import {own} as {name}"
    return ""


def imported(module: str, name: str = "") -> Any:
    """Return the object of an import; None if the module has no spec or is not imported."""
    found = sys.modules.get(module)
    if getattr(found, "__spec__", None) is None:
        return None
    return getattr(found, name, None) if name else found


def _text(module: str, name: str, bound: str) -> str:
    if name:
        return f"from {module} import {name}" + (f" as {bound}" if bound != name else "")
    return f"import {module}" + (f" as {bound}" if bound != module else "")
