"""What is compared of objects that are not plain: of libraries' objects, models and classes.

Objects change by mere use, too: files are opened, caches are filled. So what a user hardly sets is
left out: private attributes, and those that are None, empty, or of types unknown here.
Kernel and ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.kinds import GROWING, PLAIN, attribute, is_open

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
_SIMPLE = frozenset(PLAIN) - {type(None)}


def opened(value: Any) -> Any:
    """Return what is compared of an object that is not plain; None if nothing is."""
    kind = type(value)
    if is_a(value, "torch.nn", "Module"):
        return attributes_of_model(value)
    if is_a(value, "torch.optim", "Optimizer"):
        return settings_of(value)
    if is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series"):
        inside = getattr(value, "_mgr", None)
        # A change of a column makes a new array.
        return [*getattr(inside, "axes", ()), *getattr(inside, "arrays", ())]
    found = _attributes(value)
    if issubclass(kind, dict):
        return [*dict.items(value)], found
    for container in (list, tuple, set, frozenset):
        if issubclass(kind, container):
            return [*container.__iter__(value)], found
    return found or None


def shown(value: Any) -> dict[str, Any]:
    """Return the plain attributes of a library's object that a user may set."""
    if isinstance(value, (*FIXED, FunctionType)):
        return {}
    found = attribute(value, "__dict__", {})
    return {k: v for k, v in found.items() if k[:1] != "_" and is_open(type(v))}


def attributes_of_model(model: Any) -> list[Any]:
    """Return the attributes of a model's modules, without tensors, which a forward may set."""
    return [
        {
            name: one
            for name, one in vars(module).items()
            if type(one) in _SIMPLE or (_is_set(name, one) and not _has_tensors(one))
        }
        for module in model.modules()
    ]


def settings_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the settings of each of an optimizer's groups."""
    groups = optimizer.param_groups
    return [{name: group[name] for name in group if name != "params"} for group in groups]


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions and settings in a class that a cell defined."""
    for name, value in vars(cls).items():
        own = not (name.startswith("__") and name.endswith("__"))
        if type(value) in (FunctionType, *WRAPS) or (own and _is_compared(value)):
            yield name, value


def _attributes(value: Any) -> dict[str, Any]:
    found = attribute(value, "__dict__", None)
    named = dict(found) if isinstance(found, dict) else {}
    if type(value).__module__ == "__main__":
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                named[name] = attribute(value, name)
    # Extra values of pydantic's models are beside their other attributes.
    named["extra"] = attribute(value, "__pydantic_extra__") or named.get("extra")
    return {name: one for name, one in named.items() if _is_set(name, one)}


def _is_set(name: str, value: Any) -> bool:
    """Return whether a library's object probably has this attribute from a user."""
    if (name[:1] == "_" and name not in SETTINGS) or value is None:
        return False
    return _is_compared(value) and not (type(value) in GROWING and not value)


def _is_compared(value: Any) -> bool:
    kind = type(value)
    if is_open(kind) or kind is FunctionType or isinstance(value, FIXED) or _is_tensor(value):
        return True
    module = kind.__module__
    is_known = module == "__main__" or f"{module}.".startswith(FAMILIAR)
    return is_known or issubclass(kind, (dict, list, tuple, set, frozenset))


def _is_tensor(value: Any) -> bool:
    return is_a(value, "torch", "Tensor") or is_a(value, "numpy", "ndarray")


def _has_tensors(value: Any) -> bool:
    if type(value) in GROWING or type(value) is tuple:
        inside = value.values() if isinstance(value, dict) else value
        return any(is_a(one, "torch", "Tensor") for one in inside)
    return is_a(value, "torch", "Tensor")
