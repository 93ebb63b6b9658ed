"""Describes a variable in a few words: type, shape, dtype, device, size.

On a busy rank this runs on the agent's thread, while the main thread works with the same objects.
There it must not run the user's code, copy data or wait for a GPU: it may use descriptors of the
libraries' types, never `getattr` on an object of a user's class.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nbdist.machine import amounts
from nbdist.rank.values import keras_models
from nbdist.rank.values.user_errors import RAISED
from nbdist.wire.inspection import Seen

LIBRARIES = frozenset({"cupy", "jax", "jaxlib", "numpy", "pandas", "polars", "pyarrow", "torch"})
"""Libraries whose objects have a `shape` that any thread may read."""
PLAIN = (int, float, complex, bool, str, bytes, type(None))
WIDE = 40
"""The most characters of a value."""
MOST_PARTS = 1000
"""The most parts of a container whose sizes are added up; larger ones get no size."""


def describe(name: str, value: object, *, anything: bool) -> Seen:
    """Describe a variable.

    Parameters
    ----------
    name, value
        The variable.
    anything
        Whether the user's code may run, which needs an idle rank and its main thread.
    """
    told: dict[str, Any] = {}
    try:
        told = _facts(value, anything=anything)
    except RAISED:  # the user's property raised, or a busy rank changed the object meanwhile
        told = {}
    return Seen(name=name, type=_type_name(value), **told)


def _type_name(value: object) -> str:
    kind = type(value).__name__
    inner = _modules(value).get("module") if is_a(value, "torch.nn", "Module") else None
    wraps = kind in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
    return f"{kind}({_type_name(inner)})" if wraps and inner is not None else kind


def is_a(value: object, module: str, name: str) -> bool:
    """Return whether a value is an instance of a library's class, importing nothing."""
    # Not isinstance, which runs the value's `__class__` and torch's metaclasses.
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and kind in type(value).__mro__


def _facts(value: Any, *, anything: bool) -> dict[str, Any]:
    if type(value) in PLAIN:
        return {"value": _short(value)}
    for module, name, tell in _TELLERS:
        if is_a(value, module, name):
            return tell(value)
    if is_a(value, "builtins", "str") or is_a(value, "builtins", "type"):
        return {}
    if anything and is_a(value, "tensorflow", "Module"):
        return keras_models.tell_module(value)
    library = type(value).__module__.partition(".")[0]
    if anything or library in LIBRARIES:
        return _by_attributes(value, anything=anything)
    return {}


def _short(value: object) -> str:
    if isinstance(value, (str, bytes)) and len(value) > WIDE:
        return f"{value[: WIDE - 1]!r} of {len(value):,}"
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 1000 else "huge"  # noqa: PLR2004 - Python refuses to write longer ones
    return text if len(text) <= WIDE + 8 else text[:WIDE] + "…"


def _tensor(value: Any) -> dict[str, Any]:
    with _no_overrides():
        size = value.numel() * value.element_size()
        dense = value.layout is sys.modules["torch"].strided and value.device.type != "meta"
        shard = is_a(value, "torch.distributed.tensor", "DTensor")
        return {
            "shape": _shape(value.shape),
            "dtype": _word(value.dtype),
            "device": str(value.device),
            # The size of a shard is unknown here.
            "size": size if dense and not shard else None,
        }


def _no_overrides() -> AbstractContextManager[Any]:
    """Disable `__torch_function__` of tensor subclasses meanwhile, in this thread only."""
    inside = getattr(sys.modules.get("torch"), "_C", None)
    disable = getattr(inside, "DisableTorchFunctionSubclass", None)  # documented by torch
    return nullcontext() if disable is None else disable()


def _array(value: Any) -> dict[str, Any]:
    kind = sys.modules["numpy"].ndarray
    # NumPy's own descriptors, because a subclass may override them.
    dtype = kind.dtype.__get__(value)
    return {
        "shape": _shape(kind.shape.__get__(value)),
        "dtype": _word(dtype),
        "size": int(kind.nbytes.__get__(value)),
    }


def _modules(module: Any) -> dict[str, Any]:
    return dict(vars(module).get("_modules") or {})


def _tensors_of(module: Any, place: str) -> Iterator[Any]:
    """Walk a module's own dicts, since a user's class may override `parameters()`."""
    waiting, known = [module], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        waiting.extend(_modules(one).values())
        for tensor in list((vars(one).get(place) or {}).values()):
            if tensor is not None and id(tensor) not in known:
                known.add(id(tensor))
                yield tensor


def _module(value: Any) -> dict[str, Any]:
    parameters = list(_tensors_of(value, "_parameters"))
    with _no_overrides():
        count = sum(tensor.numel() for tensor in parameters)
    whole = _sum([*parameters, *_tensors_of(value, "_buffers")])
    # The parameters' dtype is the one the model computes in; buffers are often counters.
    whole["dtype"] = _sum(parameters)["dtype"] or whole["dtype"]
    return {"shape": amounts.counted(count, "parameter")} | whole


def _optimizer(value: Any) -> dict[str, Any]:
    inside = vars(value)
    parameters = [one for group in list(inside["param_groups"]) for one in group["params"]]
    state = [part for one in list(inside["state"].values()) for part in list(one.values())]
    with _no_overrides():
        count = sum(tensor.numel() for tensor in parameters)
    tensors = [part for part in state if is_a(part, "torch", "Tensor")]
    return {"shape": amounts.counted(count, "parameter")} | _sum(tensors)


def _sum(tensors: Iterable[Any]) -> dict[str, Any]:
    told = [_tensor(one) for one in tensors]
    known = all(one["size"] is not None for one in told)
    return {
        "dtype": ", ".join(dict.fromkeys(one["dtype"] for one in told)),
        "device": ", ".join(dict.fromkeys(one["device"] for one in told)),
        "size": sum(one["size"] for one in told) if known else None,
    }


def _container(kind: Any) -> Callable[[Any], dict[str, Any]]:
    def tell(value: Any) -> dict[str, Any]:
        # The base type's own methods, because a subclass may override them.
        items = list(dict.values(value)) if kind is dict else list(kind.__iter__(value))
        return {"shape": _items(len(items))} | _sum_parts(items, depth=3)

    return tell


def _items(number: int) -> str:
    return amounts.counted(number, "item")


def _sum_parts(items: list[Any], depth: int) -> dict[str, Any]:
    """Add up the sizes of the tensors and arrays in a container and its inner containers."""
    found: list[dict[str, Any]] = []
    waiting = [(item, depth) for item in items[: MOST_PARTS + 1]]
    seen = 0
    while waiting:
        part, left = waiting.pop()
        seen += 1
        if seen > MOST_PARTS:
            return {}
        if is_a(part, "torch", "Tensor"):
            found.append(_tensor(part))
        elif is_a(part, "numpy", "ndarray"):
            found.append(_array(part))
        elif left and type(part) in (list, tuple, dict):
            inner = list(part.values()) if type(part) is dict else list(part)
            waiting.extend((one, left - 1) for one in inner[: MOST_PARTS + 1])
    if not found or any(one["size"] is None for one in found):
        return {}
    devices = dict.fromkeys(one["device"] for one in found if "device" in one)
    return {"device": ", ".join(devices), "size": sum(one["size"] for one in found)}


_TELLERS: tuple[tuple[str, str, Callable[[Any], dict[str, Any]]], ...] = (
    ("torch", "Tensor", _tensor),
    ("numpy", "ndarray", _array),
    ("torch.nn", "Module", _module),
    ("torch.optim", "Optimizer", _optimizer),
    ("tensorflow", "Tensor", keras_models.tell_tensor),
    ("tensorflow", "Variable", keras_models.tell_tensor),
    ("builtins", "dict", _container(dict)),
    ("builtins", "list", _container(list)),
    ("builtins", "tuple", _container(tuple)),
    ("builtins", "set", _container(set)),
    ("builtins", "frozenset", _container(frozenset)),
    ("collections", "deque", _container(deque)),
    ("numpy", "generic", lambda value: {"value": str(value)[:WIDE]}),
)


def _by_attributes(value: Any, *, anything: bool) -> dict[str, Any]:
    """Read the attributes that arrays, data frames and datasets have in common."""
    shape = _shape(_attribute(value, "shape"))
    if not shape and anything:
        shape = _length(value)
    dtype, device = _attribute(value, "dtype"), _attribute(value, "device")
    return {
        "shape": shape,
        "dtype": "" if dtype is None or callable(dtype) else _word(dtype),
        "device": "" if device is None or callable(device) else str(device)[:WIDE],
        "size": _bytes(value),
    }


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except RAISED:  # a property may raise anything
        return None


def _length(value: Any) -> str:
    if not hasattr(type(value), "__len__"):
        return ""
    try:
        count = len(value)
    except RAISED:  # a DataLoader's length is its dataset's, which may raise
        return ""
    return _items(count)


def _bytes(value: Any) -> int | None:
    size = _attribute(value, "nbytes")
    if size is None and is_a(value, "pandas", "DataFrame"):
        size = value.memory_usage(deep=False).sum()
    try:
        return None if size is None or callable(size) else int(size)
    except RAISED:  # not a number
        return None


def _shape(shape: Any) -> str:
    if not isinstance(shape, (tuple, list)) or not all(hasattr(n, "__int__") for n in shape):
        return ""
    numbers = [str(n)[:12] for n in shape[:16]]
    return "(" + ", ".join(numbers) + ("," if len(numbers) == 1 else "") + ")"


def _word(dtype: object) -> str:
    return str(dtype).removeprefix("torch.").removeprefix("<class '").removesuffix("'>")[:WIDE]
