"""Finds the models, optimizers, schedulers and gradient scalers in a rank's variables.

They are found as variables and inside variables (`trainer.model`, `nets[0]`), and are named by the
path from the variable.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")
KINDS = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
LEAVES = (
    str, bytes, int, float, complex, type(None), ModuleType, FunctionType, BuiltinFunctionType,
)  # fmt: skip
"""Types whose inside is not searched: an object that only a closure holds is not found."""
IPYTHONS = ("get_ipython", "exit", "quit")
"""Variables that lead to IPython's shell, and from there to all variables again."""
DEEPEST = 4
"""The most steps from a variable: `trainer.strategy.models[0]` has three."""
MOST_SEEN = 5000
"""The most objects that are examined inside one variable; longer lists hold plain values."""
MOST_ITEMS = 1000
"""The most items that are examined in one container."""


def trained(namespace: Mapping[str, object]) -> dict[str, Any]:
    """Return the training objects in a namespace, by their paths.

    An object in several variables has several paths: another rank may lack one of the variables.
    """
    found: dict[str, Any] = {}
    for name, value in sorted(namespace.items()):
        if name not in IPYTHONS:
            found |= _reached(name, value)
    return _without_parts(found)


def _without_parts(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out tensors that belong to a model, and tensors that are probably not trained."""
    things = found.values()
    optimized = {
        id(one)
        for thing in things
        if is_a(thing, torch.optim.Optimizer)
        for group in thing.param_groups
        for one in group["params"]
    }
    parts = {id(one) for thing in things for one in _parameters(thing)}
    return {
        path: thing
        for path, thing in found.items()
        if not is_a(thing, torch.Tensor)
        or (id(thing) not in parts and (is_a(thing, torch.nn.Parameter) or id(thing) in optimized))
    }


def _parameters(thing: object) -> list[torch.nn.Parameter]:
    try:
        return list(thing.parameters()) if is_a(thing, torch.nn.Module) else []
    except BaseException:  # the user's code; the comparison reports it
        return []


def _reached(name: str, value: object) -> dict[str, Any]:
    """Return the training objects inside one variable, each by its shortest path."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    todo = deque([(name, value, 0)])
    while todo and len(seen) < MOST_SEEN:
        path, each, depth = todo.popleft()
        if id(each) in seen or is_a(each, LEAVES):
            continue
        seen.add(id(each))
        if is_a(each, KINDS) or _may_be_trained(each):
            found[path] = each
        elif depth < DEEPEST:
            steps = sorted(inside(each), key=itemgetter(0))
            todo += [(path + step, inner, depth + 1) for step, inner in steps]
    return found


def _may_be_trained(value: object) -> bool:
    try:
        return is_a(value, torch.Tensor) and value.requires_grad and value.is_leaf
    except BaseException:  # the user's own kind of tensor
        return False


def is_a(value: object, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Return whether a value has one of these types, without running code of the value.

    `isinstance` may read the value's `__class__`, which raises in a dead proxy and runs the user's
    `__getattribute__`.
    """
    return issubclass(type(value), kinds)


def bare(value: Any) -> Any:
    """Return the module inside ``torch.compile`` and DDP wrappers, or the value itself."""
    while (inner := _within(value)) is not None:
        value = inner
    return value


def ddp_in(value: Any) -> DistributedDataParallel | None:
    """Return the DDP model that `value` is or that ``torch.compile`` has wrapped, or None."""
    while value is not None and not isinstance(value, DistributedDataParallel):
        value = _within(value)
    return value


def _within(value: Any) -> Any:
    if isinstance(value, DistributedDataParallel):
        return value.module
    if isinstance(value, torch.nn.Module):  # torch.compile keeps the original as this child
        return dict(value.named_children()).get("_orig_mod")
    return None


def itself(value: Any) -> Any:
    """Return the object that identifies a value: a DDP model and its module are the same."""
    return value.param_groups if isinstance(value, torch.optim.Optimizer) else bare(value)


def inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items or attributes of a value, each with the step that leads to it."""
    # Only stored items and own attributes: methods and properties would run the user's code.
    if is_a(value, dict):
        for key, inner in list(islice(dict.items(value), MOST_ITEMS)):
            if type(key) in (str, int, bool):
                yield f"[{key!r}]", inner
    first = slice(MOST_ITEMS)
    if is_a(value, list):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(list.__getitem__(value, first)))
    if is_a(value, tuple):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(tuple.__getitem__(value, first)))
    if is_a(value, deque):
        items = list(islice(deque.__iter__(value), MOST_ITEMS))
        yield from ((f"[{i}]", inner) for i, inner in enumerate(items))
    if is_a(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    if is_a(value, MethodType):
        yield ".__self__", value.__self__
    yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's own attributes; those of a class only if a cell defined it."""
    if issubclass(type(value), type):
        members = dict(type.__dict__["__dict__"].__get__(value))
        if members.get("__module__") == "__main__":
            yield from ((f".{name}", members[name]) for name in members if name[:2] != "__")
        return
    for kind in type(value).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):  # not bound yet
                    yield f".{name}", member.__get__(value)
    try:
        own = object.__getattribute__(value, "__dict__")
    except BaseException:  # no `__dict__`, or a property of this name that raises
        return
    if type(own) is dict:
        for name in list(own)[:MOST_ITEMS]:
            if type(name) is str and name.isidentifier():
                yield f".{name}", own[name]
