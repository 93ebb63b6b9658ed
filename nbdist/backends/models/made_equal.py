"""Copies a model, optimizer, scheduler or tensor from one rank to all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from nbdist.backends.groups.comm_hooks import begin_again, counters, set_counters, states_of
from nbdist.backends.groups.nccl import by_device
from nbdist.backends.models.equality import is_shard, is_zero
from nbdist.backends.models.trained_objects import bare, ddp_in
from nbdist.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.parallel import DistributedDataParallel


def copy_from(target: Any, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Copy a training object from rank `source` to the other ranks; every rank must call it.

    Parameters
    ----------
    target
        A model, an optimizer's state, a scheduler, a gradient scaler or a tensor.
    source
        The rank whose values are copied.
    group
        The ranks that have the object, all if None; a DDP model is copied within its own group.

    Raises
    ------
    UsageError
        If `target` is none of these, or each rank holds a different part of it.
    """
    match target:
        case torch.nn.Module():
            _copy_model(target, source, group)
        case _ if is_zero(target):
            raise UsageError(
                "a ZeRO optimizer's state is divided among the ranks: no rank has all of it, so it "
                "cannot be copied from one rank to the others"
            )
        case torch.optim.Optimizer():
            _copy_optimizer(target, source, group)
        case torch.Tensor() if not is_shard(target):
            _broadcast(target.detach(), source, group)
        case torch.optim.lr_scheduler.LRScheduler() | torch.amp.GradScaler():
            told = [target.state_dict()]
            dist.broadcast_object_list(told, src=source, group=group)
            target.load_state_dict(told[0])
        case _:
            raise UsageError(
                "only models, optimizers, schedulers, gradient scalers and tensors can be made "
                f"equal on all ranks, not a {type(target).__name__}"
            )


def move(told: dict[str, Any], giver: int | None, taker: int | None) -> None:
    """Change the GPU in the description of a DDP model from the sender's to the receiver's.

    Parameters
    ----------
    told
        The constructor's arguments or the model's attributes, nested; changed in place.
    giver, taker
        The numbers of the two ranks' GPUs, None without a GPU.
    """
    if giver is None or taker is None:
        return

    def moved(which: Any) -> Any:
        return {giver: taker, f"cuda:{giver}": f"cuda:{taker}"}.get(which, which)

    for name, value in told.items():
        if name == "device_ids" and value is not None:
            told[name] = [moved(which) for which in value]
        elif name == "output_device":
            told[name] = moved(value)
        elif isinstance(value, dict):
            move(value, giver, taker)


def has_group(model: DistributedDataParallel) -> bool:
    """Return whether torch still knows the model's process group."""
    try:
        return dist.get_rank(model.process_group) >= 0
    except (RuntimeError, ValueError):
        return False


def _whole_state(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    inner = bare(model)
    return [*inner.named_parameters(), *inner.named_buffers()]


def _copy_model(model: torch.nn.Module, source: int, group: dist.ProcessGroup | None) -> None:
    shared = ddp_in(model)
    group = group if shared is None else shared.process_group
    tensors = [tensor for _, tensor in _whole_state(model)]
    if any(is_shard(tensor) for tensor in tensors):
        raise UsageError(
            "an FSDP model's parameters are divided among the ranks: no rank has all of them, so "
            "they cannot be copied from one rank to the others"
        )
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise UsageError("some of its parameters are sparse tensors, which cannot be sent")
    ranks = dist.get_process_group_ranks(group)
    if source not in ranks:
        raise UsageError(f"this model is shared by ranks {ranks}; rank {source} does not have it")
    for tensor in tensors:
        _broadcast(tensor.detach(), source, group)
    if shared is not None and counters(shared):
        told = [counters(shared)]
        dist.broadcast_object_list(told, src=source, group=group)
        set_counters(shared, told[0])
        begin_again(states_of(shared))


def _copy_optimizer(
    optimizer: torch.optim.Optimizer, source: int, group: dist.ProcessGroup | None
) -> None:
    """Send the structure of the state first, then its tensors one by one."""
    device = _sent_from(optimizer.param_groups[0]["params"][0].device, group)
    state = pytree.tree_map_only(torch.Tensor, _dense_parts, optimizer.state_dict())
    if dist.get_rank() == source:
        told = [pytree.tree_map_only(torch.Tensor, _Outline.of, state)]
        dist.broadcast_object_list(told, src=source, group=group, device=device)
        for leaf in pytree.tree_leaves(state):
            if isinstance(leaf, torch.Tensor):
                _broadcast(leaf.detach().to(device), source, group)
        return
    blank: list[Any] = [None]
    dist.broadcast_object_list(blank, src=source, group=group, device=device)

    def receive(outline: _Outline) -> Tensor:
        tensor = torch.empty(outline.shape, dtype=outline.dtype, device=device)
        _broadcast(tensor, source, group)
        return tensor.cpu() if outline.on_cpu else tensor

    received = pytree.tree_map_only(_Outline, receive, blank[0])
    optimizer.load_state_dict(pytree.tree_map(_joined, received, is_leaf=_is_in_parts))


SPARSE = "sparse tensor of size"


def _dense_parts(tensor: Tensor) -> Tensor | dict[str, Any]:
    """Return what can be sent: the tensor, or the indices and values of a sparse tensor."""
    if tensor.layout is torch.strided:
        return tensor
    whole = tensor.coalesce()
    return {SPARSE: tuple(whole.shape), "indices": whole.indices(), "values": whole.values()}


def _is_in_parts(value: object) -> bool:
    return isinstance(value, dict) and SPARSE in value


def _joined(value: Any) -> Any:
    if not _is_in_parts(value):
        return value
    parts = value["indices"], value["values"], value[SPARSE]
    return torch.sparse_coo_tensor(*parts, is_coalesced=True)


@dataclass(frozen=True)
class _Outline:
    """A tensor of an optimizer's state without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_cpu: bool
    """Some tensors (a step counter) stay on the CPU whatever the parameters' device is."""

    @classmethod
    def of(cls, tensor: Tensor) -> _Outline:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu")


@torch.no_grad()
def _broadcast(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    whole = tensor.contiguous().to(_sent_from(tensor.device, group))
    dist.broadcast(whole, src=source, group=group)
    if whole is not tensor:
        tensor.copy_(whole)


def _sent_from(device: torch.device, group: dist.ProcessGroup | None) -> torch.device:
    """Return a device from which the group can send: nccl only from GPUs, gloo not from MPS."""
    kinds = by_device(dist.get_backend_config(group))
    if device.type in kinds:
        return device
    return torch.device("cpu") if "cpu" in kinds else torch.device(next(iter(kinds)))
