"""Finds forward passes whose backward may still come: graphs of tensors that lead to models.

A new reducer knows of no forward pass that came before it, and would reduce nothing in the backward
pass of one, without a word.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections import deque
from contextlib import suppress
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from nbdist.backends.models.trained_objects import MOST_SEEN, is_a

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Model = TypeVar("Model", bound=torch.nn.Module)


def pending(models: Iterable[Model]) -> dict[Model, list[torch.Tensor]]:
    """Return, for each model that waits for a backward pass, the tensors which lead to it.

    Parameters
    ----------
    models
        The models.

    Returns
    -------
    dict
        The tensors whose graphs reach a parameter of the model, and were not freed by a backward
        pass. Models without any are left out.
    """
    owners = {id(part): model for model in models for part in model.parameters()}
    found: dict[Model, list[torch.Tensor]] = {}
    for tensor in _with_graphs() if owners else ():
        reached: list[Model] = []
        with suppress(Exception):  # a kind of node that no public release has
            reached = _reached(tensor.grad_fn, owners)
        for model in reached:
            found.setdefault(model, []).append(tensor)
    return found


def _with_graphs() -> Iterator[torch.Tensor]:
    """Yield all tensors of this process that an operation has made for a backward pass."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            made = False
            with suppress(Exception):  # the user's own kind of tensor
                made = thing.grad_fn is not None
            if made:
                yield thing


def _reached(root: Any, owners: dict[int, Model]) -> list[Model]:
    """Return the models that a backward pass from this node would reach; [] if it was done."""
    found: dict[Model, None] = {}
    seen, todo, whole = {root}, [root], False
    while todo:
        node = todo.pop()
        if not whole:
            try:
                whole = _has_tensors(node)
            except RuntimeError:  # they were freed
                return []
        for part in (getattr(node, "variable", None), *_computed_again(node)):
            if id(part) in owners:
                found[owners[id(part)]] = None
        for behind, _ in node.next_functions:
            if behind is not None and behind not in seen:
                seen.add(behind)
                todo.append(behind)
    return list(found)


def _computed_again(node: Any) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters to which only the backward of a node leads.

    A reentrant checkpoint computes its function again then.
    """
    todo, seen = deque([getattr(node, "run_function", None)]), set[int]()
    while todo and len(seen) < MOST_SEEN:
        each = todo.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if is_a(each, torch.nn.Module):
            yield from each.parameters()
        elif is_a(each, functools.partial):
            todo += [each.func, *each.args, *each.keywords.values()]
        elif is_a(each, MethodType):
            todo += [each.__self__, each.__func__]
        elif is_a(each, FunctionType):
            names = inspect.getclosurevars(each)
            todo += [*names.nonlocals.values(), *names.globals.values()]
        elif is_a(each, (list, tuple)):
            todo += each


def _has_tensors(node: Any) -> bool:
    """Return whether a node has tensors that its backward needs; RuntimeError if they were freed.

    A backward pass frees those of a node before those of the nodes behind it.
    """
    kind: type = type(node)
    for name in _saved(kind):
        value = getattr(node, name)
        if any(issubclass(type(one), torch.Tensor) for one in (value, *_items(value))):
            return True
    return False


def _items(value: object) -> tuple[object, ...]:
    return value if type(value) is tuple else ()


@functools.cache
def _saved(kind: type) -> list[str]:
    """Return the attributes of a kind of node which hold what its backward needs."""
    return [name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors"]
