"""Objects inside of plain values: lists, dicts, functions, objects of own classes. Both ends.

Only what `contents` compares is looked through: if such a value is the same at both ends, a path
in it leads to the same object.
"""

from __future__ import annotations

import ast
import sys
from collections import OrderedDict, defaultdict, deque
from contextlib import suppress
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.rank.values.kinds import (
    PLAIN,
    VALUES,
    attribute,
    is_open,
    is_own,
    is_value_of_library,
    slots_of,
)
from nbdist.rank.values.opened_objects import is_familiar, members, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTRIBUTE, ITEM, MEMBER, CELL = "attribute", "item", "member", "cell"
NTH, KEY = "nth", "key"
OF_PARTIAL = ("func", "args", "keywords")
OF_FUNCTION = ("__defaults__", "__kwdefaults__", "__dict__")
FIXED = (*PLAIN, *VALUES, tuple, frozenset, type, ModuleType, FunctionType, BuiltinFunctionType)
"""Types whose objects need not be the same object."""
MAPPINGS = (dict, OrderedDict, defaultdict)
SEQUENCES = (list, tuple, deque)
KEYS = (str, int)
"""Types of keys that a path has as they are; for others it has the number of the item."""
DEEPEST = 5


def inside(value: object) -> Iterator[tuple[object, str]]:
    """Yield the objects inside of a value, each with the path for `follow`."""
    yield from _walk([(value, [])], first=value)


def in_attributes(model: Any) -> Iterator[tuple[object, str]]:
    """Yield what the modules of a model have as attributes, and what is inside, with the paths."""
    attributes = {
        id(one): (one, [("get_submodule", where), (ATTRIBUTE, name)])
        for where, module in model.named_modules()
        for name, one in vars(module).items()
        if name[:1] != "_" and not isinstance(one, FIXED) and not is_value_of_library(type(one))
    }
    yield from ((one, repr(way)) for one, way in attributes.values())
    yield from _walk([*attributes.values()])


def _walk(
    todo: list[tuple[Any, list[tuple[str, Any]]]], *, first: object = None
) -> Iterator[tuple[object, str]]:
    seen = {id(holder) for holder, _ in todo}
    for holder, path in todo:  # which grows meanwhile
        for step, part in _held_by(holder, first=holder is first):
            if id(part) in seen or isinstance(part, PLAIN):
                continue
            seen.add(id(part))
            way = [*path, step]
            if len(way) < DEEPEST:
                todo.append((part, way))
            if not isinstance(part, FIXED) and not is_value_of_library(type(part)):
                yield part, repr(way)


def _held_by(holder: Any, *, first: bool) -> Iterator[tuple[tuple[str, Any], Any]]:
    kind = type(holder)
    if kind is FunctionType:
        yield from _of_function(holder)
    elif kind is partial:
        yield from (((MEMBER, name), getattr(holder, name)) for name in OF_PARTIAL)
    elif is_model(holder):
        yield from (((how, path), part) for part, how, path in of_model(holder))
    elif isinstance(holder, type):
        if first and kind is type:
            yield from (((MEMBER, name), part) for name, part in members(holder))
    else:
        yield from _of_container(holder)
        looked = first or is_familiar(kind)
        held = attribute(holder, "__dict__") if is_open(kind) else shown(holder) if looked else None
        if isinstance(held, dict):
            yield from (((ATTRIBUTE, name), part) for name, part in held.items())
        if is_own(kind):
            for name, slot in slots_of(kind, holder):
                yield (MEMBER, name), slot.__get__(holder)


def _of_function(function: FunctionType) -> Iterator[tuple[tuple[str, Any], Any]]:
    yield from (((MEMBER, name), getattr(function, name)) for name in OF_FUNCTION)
    for number, cell in enumerate(function.__closure__ or ()):
        with suppress(ValueError):  # not bound yet
            yield (CELL, number), cell.cell_contents


def _of_container(holder: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    kind = type(holder)
    if kind in MAPPINGS or _extends(kind, dict):
        for number, (key, part) in enumerate(dict.items(holder)):
            yield (ITEM, key) if type(key) in KEYS else (NTH, number), part
            if type(key) not in KEYS:
                yield (KEY, number), key
    elif kind in SEQUENCES or _extends(kind, list) or _extends(kind, tuple):
        items = list.__iter__(holder) if isinstance(holder, list) else holder
        yield from (((ITEM, number), part) for number, part in enumerate(items))


def _extends(kind: type, base: type) -> bool:
    return issubclass(kind, base) and is_own(kind)


def is_model(value: object) -> bool:
    """Return whether a value is a torch model."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def of_model(model: Any) -> Iterator[tuple[object, str, str]]:
    """Yield a model's modules, parameters and buffers, each with the method that returns it."""
    for path, part in model.named_modules():
        yield part, "get_submodule", path
    for path, part in model.named_parameters():
        yield part, "get_parameter", path
    for path, part in model.named_buffers():
        yield part, "get_buffer", path


def follow(value: Any, path: str) -> Any:
    """Return the object inside of a value to which a path leads."""
    for how, where in ast.literal_eval(path):
        match how:
            case "attribute":
                value = vars(value)[where]
            case "item":
                base = next((each for each in (dict, list) if isinstance(value, each)), None)
                value = value[where] if base is None else base.__getitem__(value, where)
            case "nth":
                value = next(islice(dict.values(value), where, None))
            case "key":
                value = next(islice(dict.__iter__(value), where, None))
            case "member":
                value = getattr(value, where)
            case "cell":
                value = value.__closure__[where].cell_contents
            case _:
                value = getattr(value, how)(where)
    return value
