"""Models and optimizers across ranks: are they equal, and make them so."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROW = 4096


def is_shard(value: object) -> bool:
    """Return whether a value is a DTensor, each rank's part of one tensor."""
    # Not imported for this: it is half a second, and who has one has imported it.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def _is_fsdp(target: object) -> bool:
    """Return whether a part of a model is FSDP's first kind, whose parameters look like tensors."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return isinstance(target, torch.nn.Module) and any(
        fsdp is not None and isinstance(part, fsdp.FullyShardedDataParallel)
        for part in target.modules()
    )


def digest(target: torch.nn.Module | torch.optim.Optimizer | Tensor) -> str | None:
    """Return a short digest of a tensor, a model's parameters or an optimizer's state.

    It is None for what is sharded. It is computed where the tensors are, from their bits, and
    fetched in one transfer.
    """
    if isinstance(target, torch.Tensor):
        named: dict[str, Tensor] = {"": target}
    elif isinstance(target, torch.nn.Module):
        named = dict(_bare(target).named_parameters())
    else:
        state, _ = pytree.tree_flatten_with_path(target.state_dict()["state"])
        named = {str(path): leaf for path, leaf in state if isinstance(leaf, torch.Tensor)}
    if any(is_shard(tensor) for tensor in named.values()) or _is_fsdp(target):
        return None
    hasher = hashlib.blake2b(digest_size=8)
    sums: dict[torch.device, list[Tensor]] = {}
    for name, tensor in named.items():
        hasher.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        if tensor.numel() and tensor.device.type != "meta":
            sums.setdefault(tensor.device, []).append(_fold(tensor))
    for values in sums.values():
        hasher.update(torch.stack(values).cpu().numpy().tobytes())
    return hasher.hexdigest()


def copy_from(target: torch.nn.Module | torch.optim.Optimizer, source: int) -> None:
    """Make a model, or an optimizer's state, on all its ranks what it is on rank `source`."""
    if isinstance(target, torch.nn.Module):
        _copy_model(target, source)
    elif isinstance(target, torch.optim.Optimizer):
        _copy_optimizer(target, source)
    else:
        raise UsageError(
            "only models and optimizers can be made equal on all ranks, "
            f"not a {type(target).__name__}"
        )


def has_group(model: DistributedDataParallel) -> bool:
    """Return whether torch still knows the model's process group."""
    try:
        return dist.get_rank(model.process_group) >= 0
    except (RuntimeError, ValueError):
        return False


def verify_same_shapes(model: DistributedDataParallel) -> None:
    """Raise on all ranks if a DDP model's parameters have other shapes on another rank."""
    group = group_of(model)
    mine = [(name, tuple(value.shape), str(value.dtype)) for name, value in _whole_state(model)]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for other, theirs in zip(dist.get_process_group_ranks(group), everyone, strict=True):
        if theirs != everyone[0]:
            raise UsageError(
                f"a {type(model.module).__name__} has other parameters on rank {other} than on "
                f"rank {dist.get_process_group_ranks(group)[0]}"
            )


def group_of(model: torch.nn.Module) -> dist.ProcessGroup:
    """Return the ranks that share a model: its DDP's own group, else all."""
    group = model.process_group if isinstance(model, DistributedDataParallel) else dist.group.WORLD
    assert group is not None  # called with the groups formed
    return group


def _whole_state(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    bare = _bare(model)
    return [*bare.named_parameters(), *bare.named_buffers()]


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


@torch.no_grad()
def _fold(tensor: Tensor) -> Tensor:
    """Reduce a tensor's bits to two numbers; the second one notices rows that changed places."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.view(_BITS[flat.element_size()]) if flat.dtype != torch.bool else flat.byte()
    whole = bits.numel() // _ROW * _ROW
    rows = bits[:whole].view(-1, _ROW).sum(1, dtype=torch.int64)
    rows = torch.cat([rows, bits[whole:].sum(dtype=torch.int64).view(1)])
    weights = torch.arange(1, len(rows) + 1, device=rows.device)
    return torch.stack([rows.sum(), (rows * weights).sum()])


def _copy_model(model: torch.nn.Module, source: int) -> None:
    group = group_of(model)
    tensors = [tensor for _, tensor in _whole_state(model)]
    if any(is_shard(tensor) for tensor in tensors):
        raise UsageError(
            "an FSDP model's parameters are shared out over the ranks: no rank has them whole, so "
            "there is nothing to copy from one to the others"
        )
    ranks = dist.get_process_group_ranks(group)
    if source not in ranks:
        raise UsageError(f"this model is shared by ranks {ranks}; rank {source} has none of it")
    for tensor in tensors:
        _broadcast(tensor.detach(), source, group)


def _copy_optimizer(optimizer: torch.optim.Optimizer, source: int) -> None:
    """Send the state's outline first, then its tensors one by one, however large they are."""
    device = optimizer.param_groups[0]["params"][0].device
    state = optimizer.state_dict()
    if dist.get_rank() == source:
        told = [pytree.tree_map_only(torch.Tensor, _Outline.of, state)]
        dist.broadcast_object_list(told, src=source, device=device)
        for leaf in pytree.tree_leaves(state):
            if isinstance(leaf, torch.Tensor):
                _broadcast(leaf.detach().to(device), source)
        return
    blank: list[Any] = [None]
    dist.broadcast_object_list(blank, src=source, device=device)

    def receive(outline: _Outline) -> Tensor:
        tensor = torch.empty(outline.shape, dtype=outline.dtype, device=device)
        _broadcast(tensor, source)
        return tensor.cpu() if outline.on_cpu else tensor

    optimizer.load_state_dict(pytree.tree_map_only(_Outline, receive, blank[0]))


@dataclass(frozen=True)
class _Outline:
    """A tensor of an optimizer's state without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_cpu: bool
    """Some (a step counter) stay in plain memory whatever the parameters' device is."""

    @classmethod
    def of(cls, tensor: Tensor) -> _Outline:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu")


@torch.no_grad()
def _broadcast(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    whole = tensor.contiguous()
    dist.broadcast(whole, src=source, group=group)
    if whole is not tensor:
        tensor.copy_(whole)
