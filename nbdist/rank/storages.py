"""What torch's tensors lie in, pickled without a copy. Needs torch."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch

from nbdist.rank.errors import CannotTravel

OWN_BYTES = 1 << 18
"""Storages up to this size get memory of their own where they arrive; they can be resized."""


def reduce_typed(storage: torch.storage.TypedStorage) -> Any:
    """Reduce what a tensor pickles of itself to the storage that tensors may share."""
    return _typed, (storage._untyped_storage, storage.dtype)


def reduce(storage: torch.UntypedStorage, devices: int | None) -> Any:
    """Reduce a storage to its bytes and to where they belong.

    Parameters
    ----------
    storage
        On the CPU or a GPU.
    devices
        How many GPUs the receivers see; None lets it arrive on the CPU.
    """
    device = storage.device
    where = ""
    if device.type == "meta":
        return NotImplemented
    if device.type != "cpu":
        if devices is not None:
            where = _checked(device, devices)
        storage = storage.cpu()
    return _storage, (pickle.PickleBuffer(_bytes(storage)), where)


def check(storage: torch.UntypedStorage, devices: int | None) -> Any:
    """Refuse what `reduce` refuses, and copy nothing."""
    if storage.device.type not in ("cpu", "meta") and devices is not None:
        _checked(storage.device, devices)
    return torch.UntypedStorage, (0,)


def reduce_xla(tensor: torch.Tensor, devices: int | None) -> Any:
    """Reduce a tensor of XLA's, which has no storage, to one on the CPU.

    Where it arrives, torch would put it on XLA's device again, and with that start a runtime.
    """
    if tensor.device.type != "xla":
        return NotImplemented
    if devices is not None:
        _checked(tensor.device, devices)
    whole = getattr(tensor, "global_tensor", tensor)  # of one that is sharded
    copy = whole.detach().cpu()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter, (copy, tensor.requires_grad)
    return torch.Tensor.requires_grad_, (copy, tensor.requires_grad)


def _checked(device: torch.device, devices: int) -> str:
    if device.type == "cuda" and (device.index or 0) < devices:
        return str(device)
    raise CannotTravel(
        f"it lies on {device}, which the ranks do not have; bring it as `.cpu()`, and put it "
        "on the rank's own `device` in the cell"
    )


def _bytes(storage: torch.UntypedStorage) -> Any:
    size = storage.nbytes()
    if not size:
        return b""
    made: Any = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
    made.storage = storage  # alive as long as somebody looks at its bytes
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
    return made.to(device=where) if where else made
