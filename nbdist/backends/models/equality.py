"""Digests of models and optimizers, by which ranks compare whether theirs are equal.

A digest is computed on the tensors' device from their bits, and fetched in one transfer. Shards
differ between ranks, but all ranks update their shards equally often: so the optimizer steps of the
last cell are told besides, and torch's count of in-place changes, which not every optimizer moves.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils import _pytree as pytree

from nbdist.backends.groups.comm_hooks import counters
from nbdist.backends.models.trained_objects import bare, is_a, itself
from nbdist.errors import UsageError
from nbdist.wire.group_reports import Digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from torch import Tensor

    from nbdist.backends.models.steps import Steps

_ROW, _CHUNK = 4096, 1 << 22
"""How many 64-bit words have different weights, and how many are folded at a time."""
_NUMBERS = (bool, int, float, complex, str, type(None))


class Comparing:
    """One comparison of many objects, which reads a tensor in several of them only once.

    Parameters
    ----------
    steps
        The optimizer steps of the last cell, if they are counted.
    jobs
        The jobs that failed. If the last cell was of another, its steps do not matter.
    shared
        For the id of a parameter, the ranks that share it, if these are not all ranks.
    together
        The ids of the parameters that ranks are known to train together.
    every
        Whether every rank compares: from then on changes are counted anew.
    """

    def __init__(
        self,
        steps: Steps | None = None,
        jobs: Collection[str] = (),
        shared: Mapping[int, list[int]] | None = None,
        together: Collection[int] = (),
        *,
        every: bool = True,
    ) -> None:
        self._every = every
        self._steps, self._jobs = steps, jobs
        self._shared, self._together = shared or {}, together
        self._read: dict[int, tuple[Tensor, list[Tensor]]] = {}
        """For the id of a tensor, the tensor and its folded values; a kept tensor keeps its id."""
        self._changed: dict[int, int] = {}
        """For the id of a parameter, how often it was changed since the last comparison."""

    def digests(self, found: Mapping[str, Any]) -> dict[str, Digest]:
        """Return the digests of objects, by their paths; never raises."""
        if self._steps is not None:
            self._steps.forget_dead()
        numbers: dict[int, int] = {}
        told = {}
        for path, thing in found.items():
            number = numbers.setdefault(id(itself(thing)), len(numbers))
            told[path] = msgspec.structs.replace(self.digest(thing), thing=number)
        return told

    def digest(self, target: Any) -> Digest:
        """Return the digest of one object; a failure becomes its reason."""
        try:
            outline = _outline(target, self._shared)
            content, sharded = self._content(target)
        except BaseException as err:  # a user's state_dict, or an unknown kind of tensor
            text = str(err).partition("\n")[0]
            why = text if isinstance(err, UsageError) else f"{type(err).__name__}: {text}"
            return Digest("", "", why)
        together = any(id(part) in self._together for part in parameters_of(target))
        told = Digest(outline, content, "", sharded, together=together)
        return told if self._steps is None else self._with_steps(told, target, self._steps)

    def _with_steps(self, told: Digest, target: Any, steps: Steps) -> Digest:
        """Add what tells whether a fault has made the object different."""
        changed = 0
        counted = [] if is_a(target, torch.optim.Optimizer) else parameters_of(target)
        if is_a(target, torch.optim.lr_scheduler.LRScheduler):
            counted = [target]
        for part in counted:
            if id(part) not in self._changed:
                self._changed[id(part)] = steps.changes_since(part)
                if self._every:
                    steps.compared(part)
            changed += self._changed[id(part)]
        failed = steps.job in self._jobs
        return msgspec.structs.replace(
            told,
            steps=steps.of(target) if failed else [],
            changed=changed if steps.job else -1,
            before=steps.before(target, failed=failed),
            sampled=steps.any and failed,
        )

    def _content(self, target: Any) -> tuple[str, bool]:
        hasher = hashlib.blake2b(digest_size=8)
        sums: dict[torch.device, list[Tensor]] = {}
        sharded = is_zero(target)
        for name, leaf in leaves(target):
            hasher.update(name.encode())
            if not isinstance(leaf, torch.Tensor):
                hasher.update(repr(leaf).encode())
            elif is_lazy(leaf):
                hasher.update(b"not there yet")
            elif is_shard(leaf):
                sharded = True
                hasher.update(f"{tuple(leaf.shape)}".encode())
            else:
                hasher.update(f"{tuple(leaf.shape)}{leaf.dtype}".encode())
                for folded in self._fold(leaf):
                    sums.setdefault(folded.device, []).append(folded)
        for values in sums.values():
            hasher.update(torch.stack(values).cpu().numpy().tobytes())
        return hasher.hexdigest(), sharded

    def _fold(self, tensor: Tensor) -> list[Tensor]:
        if id(tensor) not in self._read:
            parts = [part for part in _plain(tensor) if part.numel() and part.device.type != "meta"]
            self._read[id(tensor)] = tensor, [_fold(part) for part in parts]
        return self._read[id(tensor)][1]


def digest(target: Any) -> str | None:
    """Return a digest of a tensor, a model and its buffers, or an optimizer; None without one."""
    found = digests(target)
    return found and _of_all(found)


def digests(target: Any) -> tuple[str, str] | None:
    """Return two digests, of an object without its buffers and of these; None without them."""
    look = Comparing()
    buffers = bare(target).named_buffers() if is_a(target, torch.nn.Module) else ()
    own, *found = [look.digest(one) for one in (target, *(buffer for _, buffer in buffers))]
    if any(one.why or one.sharded for one in (own, *found)):
        return None
    return own.content, _of_all(one.content for one in found) if found else ""


def _of_all(contents: Iterable[str]) -> str:
    return hashlib.blake2b("".join(contents).encode(), digest_size=8).hexdigest()


def weight(target: Any) -> int:
    """Return how many bytes a digest reads; 0 if this is unknown."""
    try:
        tensors = [leaf for _, leaf in leaves(target) if isinstance(leaf, torch.Tensor)]
        return sum(one.numel() * one.element_size() for one in tensors if not is_lazy(one))
    except BaseException:  # the digest reports the error
        return 0


def leaves(target: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers that must be equal on all ranks, by name.

    Of the buffers only pruning masks are among them: under DDP the buffers of a batch norm differ
    between ranks until the next forward, which sends those of rank 0 to all.
    """
    match target:
        case torch.Tensor():
            yield "", target
        case torch.nn.Module():
            yield from bare(target).named_parameters()
            yield from masks(bare(target))
            yield from counters(target).items()
        case _ if is_zero(target):
            yield from _updates(target)
        case _:
            state, _ = pytree.tree_flatten_with_path(target.state_dict())
            for path, leaf in state:
                if isinstance(leaf, (torch.Tensor, *_NUMBERS)):
                    yield pytree.keystr(path), leaf


def masks(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the masks of pruned parameters, by `torch.nn.utils.prune` or a sparsifier."""
    for path, module in model.named_modules():
        computed = isinstance(module, ParametrizationList)
        for name, buffer in module.named_buffers(recurse=computed):
            of = name.removesuffix("mask")
            pruned = of.endswith("_") and hasattr(module, f"{of}orig")
            if of != name and (computed or pruned):
                yield f"{path}.{name}", buffer


def is_shard(value: object) -> bool:
    """Return whether a value is a DTensor, of which each rank holds a part."""
    # Not imported here: it takes half a second, and a DTensor exists only if it is imported.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and is_a(value, tensors.DTensor)


def is_zero(value: object) -> bool:
    """Return whether a value is an optimizer whose state is divided among the ranks."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return module is not None and isinstance(value, module.ZeroRedundancyOptimizer)


def parameters_of(thing: Any) -> list[Any]:
    """Return the parameters that an object is, has or trains."""
    if is_a(thing, torch.Tensor):
        return [thing]
    if is_a(thing, torch.nn.Module):
        return list(bare(thing).parameters())
    return [one for group in getattr(thing, "param_groups", ()) for one in group["params"]]


def changes(thing: Any) -> int:
    """Return how often a tensor was changed in place, or a scheduler was stepped; 0 if unknown."""
    if is_a(thing, torch.optim.lr_scheduler.LRScheduler):
        return int(thing.last_epoch)
    return int(getattr(thing, "_version", 0))


def _is_fsdp(target: object) -> bool:
    """Return whether a model contains FSDP1 modules, whose parameters look like plain tensors."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return isinstance(target, torch.nn.Module) and any(
        fsdp is not None and isinstance(part, fsdp.FullyShardedDataParallel)
        for part in target.modules()
    )


def _updates(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the steps and settings of this rank's part of a ZeRO optimizer's state."""
    counts = {
        f"{value}" for state in optimizer.optim.state.values() if (value := state.get("step"))
    }
    yield "updates", sorted(counts)
    for place, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if isinstance(value, _NUMBERS):
                yield f"{place}.{name}", value


def _outline(target: Any, shared: Mapping[int, list[int]]) -> str:
    """Return a digest of an object's structure: objects that differ in it were never equal.

    '' if the structure is not known yet (lazy parameters).
    """
    if _is_fsdp(target):
        raise UsageError("FSDP1 does not show which part of its parameters a rank holds")
    if isinstance(target, torch.nn.Module):
        parts = list(bare(target).named_parameters())
    elif isinstance(target, torch.optim.Optimizer):
        groups = enumerate(target.param_groups)
        parts = [(str(place), each) for place, group in groups for each in group["params"]]
    else:
        parts = []
    if any(is_lazy(part) for _, part in parts):
        return ""
    text = "".join(f"{name}{tuple(part.shape)}{part.dtype}" for name, part in parts)
    text += str(next((shared[id(part)] for _, part in parts if id(part) in shared), ""))
    return hashlib.blake2b(f"{type(target).__name__}{text}".encode(), digest_size=8).hexdigest()


def _plain(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors of which a tensor consists, whose bits can be read.

    Reading other kinds of tensors is refused: it might wait for other ranks, or crash.
    """
    if hasattr(tensor, "__tensor_flatten__") and type(tensor) is not torch.nn.Parameter:
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _plain(getattr(tensor, name))]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise UsageError(f"tensors of type {type(tensor).__name__} cannot be compared")
    whole = tensor.detach()
    if whole.layout is torch.sparse_coo:
        whole = whole.coalesce()
        return [whole.indices(), whole.values()]
    if whole.layout is not torch.strided or whole.is_nested:
        raise UsageError(f"tensors with the layout {whole.layout} cannot be compared")
    if whole.is_quantized:
        if whole.qscheme() is torch.per_tensor_affine:
            scales = torch.tensor([whole.q_scale(), whole.q_zero_point()])
        else:
            scales = torch.stack([whole.q_per_channel_scales(), whole.q_per_channel_zero_points()])
        return [whole.int_repr(), scales]
    if whole.numel() and whole.device.type != "meta" and not whole.untyped_storage().nbytes():
        raise UsageError("the memory of its parameters was freed")
    return [whole]


@torch.no_grad()
def _fold(tensor: Tensor) -> Tensor:
    """Reduce a tensor's bits to two numbers, on its device, which depend on the order."""
    # Apply a view's pending conjugation and negation, which its bits do not have yet.
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.stride(0) != 1:  # an expanded view of one number
        flat = flat.clone(memory_format=torch.contiguous_format)
    octets = flat.view(torch.uint8)
    if flat.device.type != "cpu":
        return fold_words(octets)
    # Not by `numpy()`, after which torch refuses to resize the user's tensor, as FSDP2 does.
    memory = (ctypes.c_char * len(octets)).from_address(octets.data_ptr())
    hashed = hashlib.blake2b(memory, digest_size=16)
    return torch.frombuffer(bytearray(hashed.digest()), dtype=torch.int64)


def fold_words(octets: Tensor) -> Tensor:
    """Reduce bytes to two numbers, by sums in which each place has its own weight.

    The upper and lower halves of words have separate weights: otherwise differences in the highest
    bits of two words could vanish when 64 bits overflow.
    """
    if len(octets) % 8 or octets.storage_offset() % 8:
        octets = torch.cat([octets, octets.new_zeros(-len(octets) % 8)])
    place = torch.arange(_ROW, device=octets.device)
    upper, lower = (_mixed(place + start) for start in (0, _ROW))
    rows = []
    for part in octets.view(torch.int64).split(_CHUNK):
        whole = len(part) // _ROW * _ROW
        for block in (part[:whole].view(-1, _ROW), part[None, whole:]):
            wide = block.shape[1]
            halves = (block >> 32) * upper[:wide] + (block & 0xFFFFFFFF) * lower[:wide]
            rows.append(halves.sum(1))
    found = torch.cat(rows)
    places = torch.arange(len(found), device=octets.device)
    return torch.stack([(found * _mixed(places + start)).sum() for start in (0, len(found))])


def _mixed(places: Tensor) -> Tensor:
    """Return odd pseudo-random weights of 31 bits."""
    mixed = places * 0x9E3779B1 & 0x7FFFFFFF
    return ((mixed ^ mixed >> 15) * 0x2C1B3C6D & 0x7FFFFFFF) | 1
