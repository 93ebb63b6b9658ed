"""Finds the part of a value for which the value cannot travel, and says what to do about it."""

from __future__ import annotations

import functools
import re
import sys
import time
from collections import deque
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from nbdist.rank.values.describe import PLAIN
from nbdist.rank.values.user_errors import RAISED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOK_SECONDS = 1.0
DEEPEST = 20
SHOWN_KEYS = (str, int, float, bool, type(None))
"""Types of keys that are written into a path."""
HOLDS = "it is or holds "
IN_THE_CELL = ("create it in the cell", "open it in the cell", "it belongs to this process")
"""How the advice begins that helps only if the value itself is wanted on the ranks."""


def explained(
    name: str, value: object, why: str, refuses: Callable[[object], str], *, returned: bool = False
) -> str:
    """Return the reason why a value cannot travel, with the path to the part, and what to do.

    Parameters
    ----------
    name, value
        The value and its name.
    why
        The reason as pickling has told it.
    refuses
        Returns the reason why an object cannot be pickled alone; '' if it can be.
    returned
        Whether the value was on its way to the notebook.
    """
    path, culprit = _find(name, value, why, refuses)
    what, _, advice = why.partition("; ")
    if path != name and what.startswith(HOLDS):
        kind = what.removeprefix(HOLDS)
        verb = "is" if type(culprit).__name__ in kind or "open file" in kind else "holds"
        what = f"`{path}` {verb} {kind}"
    elif path != name:
        what = f"`{path}`: {what}"
    if advice.startswith(IN_THE_CELL) and (returned or path != name):
        advice = _advice(name, path, value, returned=returned)
    elif returned:
        advice = advice.removesuffix(", or create it in the cell")
        advice = re.sub(r"its `\.module` .*", f"`{path}.module` can be returned", advice)
    return f"{what}; {advice}" if advice else what


def _advice(name: str, path: str, value: object, *, returned: bool) -> str:
    if path == name:
        return "it belongs to its process: return what it is made from"
    where = "at the end of the cell" if returned else "here, and create it in the cell"
    left_out = "remove that hook" if "_hooks[" in path else "set it to None or leave it out"
    told = f"{left_out} {where}"
    if _is_model(value):
        verb = "return" if returned else "bring"
        told += f"; or bind `{name}.state_dict()` to a name, and {verb} that"
    return told


def _find(
    name: str, value: object, why: str, refuses: Callable[[object], str]
) -> tuple[str, object]:
    """Return the path to the innermost part that is refused for the same reason, and the part."""
    end, met, path = time.monotonic() + LOOK_SECONDS, {id(value)}, name
    for _ in range(DEEPEST):
        for step, part in _parts(value):
            if time.monotonic() > end:
                return path, value
            if type(part) in PLAIN or id(part) in met:
                continue
            met.add(id(part))
            if refuses(part) == why:
                path, value = path + step, part
                break
        else:
            break
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield what a value holds, each with the text that leads to it from the value's path."""
    if isinstance(value, dict):
        for key, each in list(value.items()):
            if type(key) in SHOWN_KEYS:
                yield f"[{key!r}]", each
    elif isinstance(value, (list, tuple, deque)):
        for at, each in enumerate(list(value)):
            yield f"[{at}]", each
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    yield from _attributes(value)


def _of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the variables that a function has from the functions around it, and its defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".<locals>.{name}", cell.cell_contents
        except ValueError:  # an empty cell
            continue
    for name in ("__defaults__", "__kwdefaults__"):
        yield f".{name}", getattr(function, name)


def _attributes(value: Any) -> Iterator[tuple[str, object]]:
    slots = [
        name
        for kind in type(value).__mro__
        for names in [vars(kind).get("__slots__", ())]
        for name in ([names] if isinstance(names, str) else names)
    ]
    try:
        found = dict(vars(value))
    except TypeError:  # it has no attributes
        found = {}
    if _is_model(value):
        for name, part in found.pop("_modules", {}).items():
            yield f".{name}" if name.isidentifier() else f"[{name}]", part
    for name in slots:
        try:
            found.setdefault(name, getattr(value, name))
        except RAISED:  # it has no value
            continue
    for name, part in found.items():
        yield f".{name}", part


def _is_model(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)
