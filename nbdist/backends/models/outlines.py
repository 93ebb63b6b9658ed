"""Outlines of what `%dist sync` copies: ranks that differ in them cannot exchange values.

A collective does not look at names, shapes or dtypes: it would read one tensor's bytes as those of
another, wait forever, or end the process. So the hub compares the outlines of all ranks before any
rank sends or writes anything.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from nbdist.backends.groups.comm_hooks import counters
from nbdist.backends.models.equality import is_shard, is_zero
from nbdist.backends.models.trained_objects import bare
from nbdist.wire.group_reports import Outline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

DIVIDED = (
    "an FSDP model's parameters are divided among the ranks: no rank has all of them, so they "
    "cannot be copied from one rank to the others"
)
ZERO = (
    "a ZeRO optimizer's state is divided among the ranks: no rank has all of it, so it cannot be "
    "copied from one rank to the others"
)
NOT_COPIED = (
    "only models, optimizers, schedulers, gradient scalers and tensors can be made equal on all "
    "ranks, not a"
)
COMPILED = "_orig_mod"
"""Torch's name for the module inside a compiled one."""


def outline(target: Any) -> Outline:
    """Return what must be the same on all ranks so that `target` can be copied between them."""
    match target:
        case torch.nn.Module():
            return _of_model(target)
        case torch.optim.Optimizer():
            return _of_optimizer(target)
        case torch.Tensor():
            return Outline({"": _described(target)}, _refused("it", target))
        case torch.optim.lr_scheduler.LRScheduler():
            return Outline(dict(_of_scheduler("", target)))
        case torch.amp.GradScaler():
            # A disabled scaler has no state to give, and takes none.
            enabled = "enabled" if target.is_enabled() else "disabled"
            return Outline({"": f"{_kind(target)} and {enabled}"})
    return Outline({"": _kind(target)}, f"{NOT_COPIED} {type(target).__name__}")


def whole_state(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and buffers, by names that are the same on all ranks."""
    inner = bare(model)
    found = {_named(name): each for name, each in inner.named_parameters()}
    return found | {_named(name): each for name, each in inner.named_buffers()}


def plain_parts(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors of which a tensor consists; they share its memory."""
    if _is_wrapper(tensor):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # of its class
        return [part for name in names for part in plain_parts(getattr(tensor, name))]
    return [tensor.detach().as_subclass(torch.Tensor)]


def is_fsdp1(model: object) -> bool:
    """Return whether a model contains FSDP1 modules, whose parameters look like plain tensors."""
    return _has(model, "FullyShardedDataParallel")


def _is_fsdp2(model: object) -> bool:
    """Return whether it contains FSDP2's: theirs look so from a forward to its backward."""
    return _has(model, "FSDPModule")


def _has(model: object, kind: str) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return isinstance(model, torch.nn.Module) and any(
        fsdp is not None and isinstance(part, getattr(fsdp, kind)) for part in model.modules()
    )


def _of_model(model: torch.nn.Module) -> Outline:
    inner = bare(model)
    parts = {
        _named(name): _kind(module)
        for name, module in inner.named_modules()
        if COMPILED not in dict(module.named_children())
    }
    state = whole_state(model)
    parts |= {name: _described(tensor) for name, tensor in state.items()}
    parts |= _tied(inner)
    parts |= {f"hook {name}": "a counter" for name in counters(model)}
    if is_fsdp1(model) or _is_fsdp2(model) or any(map(is_shard, state.values())):
        return Outline(parts, DIVIDED)
    why = (_refused(f"its `{name}`", tensor) for name, tensor in state.items())
    return Outline(parts, next(filter(None, why), ""))


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Outline:
    parts = {"": _kind(optimizer)}
    for place, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            parts[f"parameter {number} of group {place}"] = _described(parameter)
            if is_shard(parameter):
                return Outline(parts, DIVIDED)
    if is_zero(optimizer):
        return Outline(parts, ZERO)
    leaves = pytree.tree_leaves(optimizer.state_dict())
    odd = {
        f"{each.layout} tensors" if type(each) is torch.Tensor else type(each).__name__
        for each in leaves
        if isinstance(each, torch.Tensor) and not _is_simple(each)
    }
    return Outline(parts, f"its state has {min(odd)}, which cannot be sent" if odd else "")


def _of_scheduler(name: str, scheduler: Any) -> Iterator[tuple[str, str]]:
    """Yield the schedulers of which one consists, each with its number of learning rates."""
    rates = len(getattr(scheduler, "base_lrs", ()))
    yield name, f"{_kind(scheduler)} with {rates} learning rates" if rates > 1 else _kind(scheduler)
    for place, inner in enumerate(getattr(scheduler, "_schedulers", ())):
        yield from _of_scheduler(f"{name or 'scheduler'}[{place}]", inner)


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


def _named(name: str) -> str:
    return ".".join(step for step in name.split(".") if step != COMPILED)


def _tied(model: torch.nn.Module) -> dict[str, str]:
    """Return the further names of parameters and buffers that have several."""
    first: dict[int, str] = {}
    found = {}
    for each in (model.named_parameters, model.named_buffers):
        for name, tensor in each(remove_duplicate=False):
            owner = first.setdefault(id(tensor), _named(name))
            if owner != _named(name):
                found[_named(name)] = f"the same as `{owner}`"
    return found


def _described(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "without values"
    text = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if is_shard(tensor):
        return f"{text} in parts"
    if _is_wrapper(tensor):
        inside = ", ".join(_described(part) for part in plain_parts(tensor))
        return f"{text} in a {type(tensor).__name__} of {inside}"
    if tensor.layout is not torch.strided:
        text = f"{text} in the layout {str(tensor.layout).removeprefix('torch.')}"
    return f"{text} on the device meta" if tensor.device.type == "meta" else text


def _refused(name: str, tensor: Tensor) -> str:
    """Return why a tensor's values can be neither sent nor received; '' if they can."""
    if is_lazy(tensor) or tensor.device.type == "meta":
        return f"{name} has no values yet"
    if is_shard(tensor):
        return f"{name} is divided among the ranks"
    if _is_wrapper(tensor):
        return next(filter(None, (_refused(name, part) for part in plain_parts(tensor))), "")
    if tensor.layout is not torch.strided:
        return f"{name} is a sparse tensor, which cannot be sent"
    if not _is_simple(tensor):
        kind = "quantized tensor" if tensor.is_quantized else type(tensor).__name__
        return f"{name} is a {kind}, which cannot be sent"
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    shared = any(size > 1 and not step for size, step in steps)
    return f"{name} is an expanded view, whose elements share memory" if shared else ""


def _is_simple(tensor: Tensor) -> bool:
    """Return whether a tensor is a block of memory, or of the sparse kind that is sent in parts."""
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    layouts = torch.strided, torch.sparse_coo
    return not (own or tensor.is_quantized or tensor.is_nested) and tensor.layout in layouts


def _is_wrapper(tensor: Tensor) -> bool:
    return hasattr(tensor, "__tensor_flatten__") and not is_shard(tensor)
