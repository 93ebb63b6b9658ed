"""What a training keeps and ranks must hold alike: models, optimizers, schedulers, scalers.

They are found wherever a variable leads to them (`trainer.model`, `nets[0]`), not only where a
variable holds them, and are named by the way there.
"""

from __future__ import annotations

from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KINDS = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
LEAVES = (
    str, bytes, int, float, complex, type(None), torch.Tensor, type, ModuleType, FunctionType,
    BuiltinFunctionType, MethodType,
)  # fmt: skip
"""Kinds that lead nowhere."""
DEEPEST = 4
"""Steps from a variable: `trainer.strategy.models[0]` has three."""
MOST_SEEN = 20_000
"""Objects that are looked at; a list of more has plain values in it."""
MOST_ITEMS = 1000
"""Of one container."""


def trained(namespace: Mapping[str, object]) -> dict[str, Any]:
    """Return what variables lead to, by the shortest way there; each thing once.

    A DDP model and the module in it are one, and so are an optimizer and a wrapper around it.
    """
    found: dict[int, tuple[str, Any]] = {}
    seen: set[int] = set()
    private = {name: value for name, value in namespace.items() if name.startswith("_")}
    public = {name: value for name, value in namespace.items() if name not in private}
    # Names with an underscore come last: IPython's own are among them.
    todo = deque((name, value, 0) for name, value in (*public.items(), *private.items()))
    while todo and len(seen) < MOST_SEEN:
        path, value, depth = todo.popleft()
        if id(value) in seen or isinstance(value, LEAVES):
            continue
        seen.add(id(value))
        if isinstance(value, KINDS):
            one = id(_itself(value))
            if one not in found or isinstance(value, DistributedDataParallel):
                found[one] = path, value
        elif depth < DEEPEST:
            todo += [(path + step, inner, depth + 1) for step, inner in _inside(value)]
    return dict(found.values())


def settle_scalers(namespace: Mapping[str, object]) -> None:
    """Let gradient scalers forget the stage of a step that was broken off.

    They would refuse every later step: "already called since the last update".
    """
    for thing in trained(namespace).values():
        stages = getattr(thing, "_per_optimizer_states", None)
        if isinstance(thing, torch.amp.GradScaler) and stages is not None:
            stages.clear()


def bare(value: Any) -> Any:
    """Return the module that ``torch.compile`` or DDP was given, or what is neither."""
    while (inner := _within(value)) is not None:
        value = inner
    return value


def ddp_in(value: Any) -> DistributedDataParallel | None:
    """Return the DDP model that a model is, also one that ``torch.compile`` was given."""
    while value is not None and not isinstance(value, DistributedDataParallel):
        value = _within(value)
    return value


def _within(value: Any) -> Any:
    if isinstance(value, DistributedDataParallel):
        return value.module
    if isinstance(value, torch.nn.Module):  # what torch.compile makes of one has it as this child
        return dict(value.named_children()).get("_orig_mod")
    return None


def _itself(value: Any) -> Any:
    """Return what makes two things one."""
    return value.param_groups if isinstance(value, torch.optim.Optimizer) else bare(value)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container or an object holds, each with the step that leads there."""
    if isinstance(value, dict):
        for key in list(value)[:MOST_ITEMS]:
            if type(key) in (str, int, bool):
                yield f"[{key!r}]", value[key]
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value[:MOST_ITEMS]):
            yield f"[{index}]", inner
    # Its own attributes only: a property would run code of the user's.
    own = getattr(value, "__dict__", None)
    if type(own) is dict:
        for name in list(own)[:MOST_ITEMS]:
            if isinstance(name, str) and name.isidentifier():
                yield f".{name}", own[name]
