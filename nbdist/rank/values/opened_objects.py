"""What is compared of objects that are not plain: of libraries' objects, models and classes.

Objects change by mere use, too: files are opened, caches are filled. So what a user hardly sets is
left out: attributes that are None, empty, or can be closed. Of libraries' objects also those that
are private or of types unknown here; of the user's own the private ones that are containers or that
no method mentions.
Kernel and ranks.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.kinds import GROWING, PLAIN, attribute, is_open, is_own, slots_of

FIXED = (type, BuiltinFunctionType, ModuleType, CodeType)
WRAPS: dict[type, Callable[[Any], Any]] = {
    functools._lru_cache_wrapper: lambda found: getattr(found, "__wrapped__", None),
    functools.cached_property: lambda found: found.func,
    property: lambda found: (found.fget, found.fset, found.fdel),
    staticmethod: lambda found: found.__func__,
    classmethod: lambda found: found.__func__,
}
"""Types that wrap functions, each with how to get the functions."""
SETTINGS = frozenset({"_hparams", "_content", "_val"})
"""Private attributes in which Lightning and OmegaConf keep what users set."""
FAMILIAR = (
    "torch.nn.", "torch.utils.data.", "pandas.", "pydantic.", "sklearn.",
    "transformers.models.", "transformers.configuration_utils", "transformers.generation.",
)  # fmt: skip
"""Modules whose objects are compared also where a library's object has them."""
CONTAINERS = (dict, list, tuple, set, frozenset)
STREAMS = (io.StringIO, io.BytesIO)
_SIMPLE = frozenset(PLAIN) - {type(None)}


def opened(value: Any) -> Any:
    """Return what is compared of an object that is not plain; None if nothing is."""
    kind = type(value)
    if is_a(value, "torch.nn", "Module"):
        return attributes_of_model(value)
    if is_a(value, "torch.optim", "Optimizer"):
        return settings_of(value)
    if is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series"):
        return _of_table(value)
    if kind in STREAMS or (kind.__module__ == "builtins" and hasattr(kind, "__next__")):
        return _of_stream(value)
    found = _attributes(value)
    container: Any = next((each for each in CONTAINERS if issubclass(kind, each)), None)
    if container is None:
        return found or None
    inside = dict.items(value) if container is dict else container.__iter__(value)
    return [*inside], found


def shown(value: Any) -> dict[str, Any]:
    """Return the attributes of a library's object that a user may set."""
    if isinstance(value, (*FIXED, FunctionType)):
        return {}
    found = attribute(value, "__dict__", {})
    return {
        name: one
        for name, one in found.items()
        if name[:1] != "_" and (is_open(type(one)) or is_familiar(type(one)))
    }


def is_familiar(kind: type) -> bool:
    """Return whether objects of a class are compared also where others have them."""
    return is_own(kind) or f"{kind.__module__}.".startswith(FAMILIAR)


def attributes_of_model(model: Any) -> list[Any]:
    """Return the attributes of a model's modules, without tensors, which a forward may set."""
    found, mentioned = list[dict[str, Any]](), dict[type, set[str]]()
    for module in model.modules():
        kind = type(module)
        if kind not in mentioned:
            mentioned[kind] = _mentioned(kind)
        found.append(
            {
                name: one
                for name, each in vars(module).items()
                if type(each) in _SIMPLE or _is_set(name, each, kind, mentioned[kind])
                if (one := _without_tensors(each)) is not None
            }
        )
    return found


def attributes_of_tensor(tensor: Any) -> dict[str, Any]:
    """Return the plain attributes that a user has given to a tensor or a parameter."""
    found = attribute(tensor, "__dict__")
    if not found:
        return {}
    return {k: one for k, one in found.items() if k[:1] != "_" and type(one) in _SIMPLE}


def settings_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the settings of each of an optimizer's groups."""
    groups = optimizer.param_groups
    return [{name: group[name] for name in group if name != "params"} for group in groups]


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions and settings in a class that a cell defined."""
    for name, value in vars(cls).items():
        own = not (name.startswith("__") and name.endswith("__"))
        is_set = own and (_is_compared(value) or (name[0] != "_" and not _is_opened(value)))
        if type(value) in (FunctionType, *WRAPS) or is_set:
            yield name, value


def _attributes(value: Any) -> dict[str, Any]:
    found = attribute(value, "__dict__", None)
    named = dict(found) if isinstance(found, dict) else {}
    kind = type(value)
    if is_own(kind):
        named |= {name: slot.__get__(value) for name, slot in slots_of(kind, value)}
    # Extra and private values of pydantic's models are beside their other attributes.
    named["extra"] = attribute(value, "__pydantic_extra__") or named.get("extra")
    named["private"] = attribute(value, "__pydantic_private__") or named.get("private")
    mentioned = _mentioned(kind)
    return {name: one for name, one in named.items() if _is_set(name, one, kind, mentioned)}


def _is_set(name: str, value: Any, kind: type, mentioned: set[str]) -> bool:
    """Return whether an object of this class probably has this attribute from a user."""
    if value is None or (type(value) in GROWING and not value):
        return False
    is_cache = name not in mentioned or type(value) in GROWING
    if name[:1] == "_" and name not in SETTINGS and is_cache:
        return False
    return _is_compared(value) or (is_own(kind) and not _is_opened(value))


def _mentioned(kind: type) -> set[str]:
    """Return the names that the user's own classes among the bases of a class mention."""
    found, own = set[str](), filter(is_own, kind.__mro__)
    for name, member in (pair for each in own for pair in vars(each).items()):
        found.add(name)
        inside = WRAPS[type(member)](member) if type(member) in WRAPS else member
        for part in inside if type(inside) is tuple else (inside,):
            if isinstance(part, FunctionType):
                found.update(_names_in(part.__code__))
    return found


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def _is_opened(value: Any) -> bool:
    """Return whether an object stands for something outside, as a file that a method opens."""
    return hasattr(type(value), "close") or hasattr(type(value), "__exit__")


def _of_stream(value: Any) -> Any:
    """Return what an iterator of Python's, or a file in memory, still holds."""
    with suppress(TypeError, ValueError):  # a generator; a closed file
        return (value.getvalue(), value.tell()) if type(value) in STREAMS else value.__reduce__()
    return None


def _of_table(value: Any) -> list[Any]:
    """Return what is compared of a data frame or a series."""
    inside = getattr(value, "_mgr", None)
    axes = [*getattr(inside, "axes", ())]
    # A change of a column makes a new array, or changes the memory in an array of pandas.
    arrays = [_memory_in(each) for each in getattr(inside, "arrays", ())]
    return [*axes, *(list(each.names) for each in axes), *arrays]


def _memory_in(array: Any) -> Any:
    return getattr(array, "_pa_array", getattr(array, "_ndarray", array))


def _is_compared(value: Any) -> bool:
    kind = type(value)
    if is_open(kind) or kind is FunctionType or isinstance(value, FIXED) or _is_tensor(value):
        return True
    return is_familiar(kind) or issubclass(kind, CONTAINERS)


def _is_tensor(value: Any) -> bool:
    return is_a(value, "torch", "Tensor") or is_a(value, "numpy", "ndarray")


def _without_tensors(value: Any) -> Any:
    """Return a value, a container without the tensors in it; None if it has nothing else."""
    if is_a(value, "torch", "Tensor"):
        return None
    kind = type(value)
    is_dict = kind in GROWING and isinstance(value, dict)
    inside = value.values() if is_dict else value if kind in (list, tuple) else ()
    if not any(is_a(one, "torch", "Tensor") for one in inside):
        return value
    kept = [_without_tensors(one) for one in inside]
    if all(one is None for one in kept):
        return None
    return dict(zip(value, kept, strict=True)) if is_dict else kept
