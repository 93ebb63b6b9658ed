"""Pickles the storages (memory) of torch's tensors without copies. Needs torch."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch

from nbdist.machine import gpus
from nbdist.rank.values.user_errors import CannotTravel

OWN = "own"
"""Marks a storage for the receiver's own GPU."""
OWN_BYTES = 1 << 18
"""Storages up to this size are copied at the receiver, and so can be resized."""


def reduce_typed(storage: torch.storage.TypedStorage) -> Any:
    """Reduce a typed storage to the untyped storage inside, which tensors may share."""
    return _typed, (storage._untyped_storage, storage.dtype)


def reduce(storage: torch.UntypedStorage, devices: int | None) -> Any:
    """Reduce a storage to its bytes and a device: the CPU, or the receiver's own GPU.

    Parameters
    ----------
    storage
        The storage, on the CPU or a GPU.
    devices
        How many GPUs the receivers see; None puts it on the CPU there.
    """
    where = ""
    if storage.device.type == "meta":
        return NotImplemented
    if storage.device.type != "cpu":
        if devices is not None:
            where = _checked(storage.device, devices)
        storage = storage.cpu()
    return _storage, (pickle.PickleBuffer(_bytes(storage)), where)


def reduce_for_rank(storage: torch.UntypedStorage) -> Any:
    """Reduce a storage for another rank: this rank's own GPU becomes that rank's own GPU.

    Any other GPU stays the same.
    """
    kind, where = storage.device.type, str(storage.device)
    if kind == "meta":
        return NotImplemented
    if kind == "cpu":
        where = ""
    elif kind == "cuda" and _is_own(storage.device):
        where = OWN
    return _storage_of_rank, (pickle.PickleBuffer(_bytes(storage.cpu())), where)


def reduce_device(device: torch.device) -> Any:
    """Reduce the notebook's device for ranks, as `reduce` does for storages on it."""
    return (_device, (str(device),)) if device.type == "cuda" else NotImplemented


def reduce_device_for_rank(device: torch.device) -> Any:
    """Reduce a device for another rank, as `reduce_for_rank` does for storages on it."""
    own = device.type == "cuda" and torch.cuda.device_count() and _is_own(device)
    return (_device, (str(device),)) if own else NotImplemented


def check(storage: torch.UntypedStorage, devices: int | None) -> Any:
    """Refuse the storages that `reduce` refuses, without copying."""
    if storage.device.type not in ("cpu", "meta") and devices is not None:
        _checked(storage.device, devices)
    return torch.UntypedStorage, (0,)


def reduce_xla(tensor: torch.Tensor, devices: int | None) -> Any:
    """Reduce an XLA tensor, which has no storage, to a tensor on the CPU.

    Otherwise torch would move it to XLA's device at the receiver, and start a runtime there.
    """
    if tensor.device.type != "xla":
        return NotImplemented
    if devices is not None:
        _checked(tensor.device, devices)
    whole = getattr(tensor, "global_tensor", tensor)  # a sharded tensor
    copy = whole.detach().cpu()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter, (copy, tensor.requires_grad)
    return torch.Tensor.requires_grad_, (copy, tensor.requires_grad)


def _checked(device: torch.device, devices: int) -> str:
    if device.type == "cuda" and devices:
        return OWN
    if device.type == "mps":  # the ranks are on the same machine
        return "mps"
    raise CannotTravel(
        f"it is on {device}, which the ranks do not have; bring it as `.cpu()`, and move it "
        "to the rank's own `device` in the cell"
    )


def _bytes(storage: torch.UntypedStorage) -> Any:
    size = storage.nbytes()
    if not size:
        return b""
    made: Any = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
    made.storage = storage  # keeps the storage alive while its bytes are in use
    return made


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _storage(data: Any, where: str) -> torch.UntypedStorage:
    size = memoryview(data).nbytes
    if not size:
        made = torch.UntypedStorage(0)
    elif size <= OWN_BYTES:
        made = torch.frombuffer(data, dtype=torch.uint8).untyped_storage().clone()
    else:
        made = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    if not where:
        return made
    moved: torch.UntypedStorage = made.to(
        device=_own_device() if where == OWN else torch.device(where)
    )
    return moved


def _storage_of_rank(data: Any, where: str) -> torch.UntypedStorage:
    made = _storage(data, where)
    # A storage in a buffer cannot be resized, as FSDP does.
    return made if where or made.nbytes() <= OWN_BYTES else made.clone()


def _device(name: str) -> torch.device:
    return _own_device() if torch.cuda.device_count() else torch.device(name)


def _own_device() -> torch.device:
    return torch.device("cuda", gpus.own(torch.cuda.device_count()))


def _is_own(device: torch.device) -> bool:
    return device.index in (None, _own_device().index)
