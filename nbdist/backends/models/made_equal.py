"""Copies a model, optimizer, scheduler or tensor from one rank to all others.

The ranks have agreed before on what is copied (`outlines`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from nbdist.backends.groups.comm_hooks import begin_again, counters, set_counters, states_of
from nbdist.backends.groups.nccl import by_device
from nbdist.backends.models.outlines import plain_parts, whole_state
from nbdist.backends.models.trained_objects import ddp_in

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.parallel import DistributedDataParallel


def copy_from(target: Any, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Copy a training object from rank `source` to the other ranks; every rank must call it.

    Parameters
    ----------
    target
        A model, an optimizer's state, a scheduler, a gradient scaler or a tensor, with the same
        outline on all ranks (`outlines.outline`).
    source
        The rank whose values are copied.
    group
        The ranks that have the object, all if None.
    """
    match target:
        case torch.nn.Module():
            _copy_model(target, source, group)
        case torch.optim.Optimizer():
            _copy_optimizer(target, source, group)
        case torch.Tensor():
            _copy_tensor(target, source, group)
        case _:
            told = [target.state_dict() if dist.get_rank() == source else None]
            dist.broadcast_object_list(told, src=source, group=group)
            if told[0] is not None and dist.get_rank() != source:
                target.load_state_dict(told[0])


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


def _copy_model(model: torch.nn.Module, source: int, group: dist.ProcessGroup | None) -> None:
    for _, tensor in sorted(whole_state(model).items()):  # ranks may have another order
        _copy_tensor(tensor, source, group)
    shared = ddp_in(model)
    if shared is not None and counters(shared):
        told = [counters(shared)]
        dist.broadcast_object_list(told, src=source, group=group)
        set_counters(shared, told[0])
        begin_again(states_of(shared))


def _copy_optimizer(
    optimizer: torch.optim.Optimizer, source: int, group: dist.ProcessGroup | None
) -> None:
    """Send the structure of the state first, then its tensors one by one."""
    if dist.get_rank() == source:
        state = pytree.tree_map_only(torch.Tensor, _dense_parts, optimizer.state_dict())
        told = [pytree.tree_map_only(torch.Tensor, _Outline.of, state)]
        dist.broadcast_object_list(told, src=source, group=group)
        for leaf in pytree.tree_leaves(state):
            if isinstance(leaf, torch.Tensor):
                _broadcast(leaf.detach(), source, group)
        return
    blank: list[Any] = [None]
    dist.broadcast_object_list(blank, src=source, group=group)
    own = optimizer.param_groups[0]["params"][0].device

    def receive(outline: _Outline) -> Tensor:
        device = torch.device("cpu") if outline.on_cpu else own
        tensor = torch.empty(outline.shape, dtype=outline.dtype, device=device)
        _broadcast(tensor, source, group)
        return tensor

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


def _copy_tensor(tensor: Tensor, source: int, group: dist.ProcessGroup | None) -> None:
    for part in plain_parts(tensor):
        _broadcast(part, source, group)


@torch.no_grad()
def _broadcast(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Send the bytes of a tensor: a backend may not know its dtype."""
    if not tensor.numel():
        return
    whole = tensor.resolve_conj().resolve_neg().contiguous().to(_sent_from(tensor.device, group))
    dist.broadcast(whole.reshape(-1).view(torch.uint8), src=source, group=group)
    if whole is not tensor and dist.get_rank() != source:
        tensor.copy_(whole)


def _sent_from(device: torch.device, group: dist.ProcessGroup | None) -> torch.device:
    """Return a device from which the group can send, of the same kind on all ranks.

    Ranks may hold the tensor on different kinds of devices, for which a group may have different
    backends.
    """
    kinds = by_device(dist.get_backend_config(group))
    if "cpu" in kinds:
        return torch.device("cpu")
    kind = next(iter(kinds))
    return device if device.type == kind else torch.device(kind)
