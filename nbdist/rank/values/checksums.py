"""Checksums of tensors, arrays and buffers: whether their values have changed. Kernel and ranks.

Torch's count of in-place changes moves with most changes, but not with those by fused optimizers,
through `.data`, NumPy or DLPack, nor with the running statistics of a batch norm. A CRC reads 3 to
4 GB in a second, as zlib's does, and notices each change of one word, unlike a plain sum also when
values change places or signs.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from typing import Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.user_errors import RAISED

MOST_SUMMED = 1 << 23
"""How many bytes of one value are read completely: 2 to 4 ms, which every cell with it waits."""
SAMPLES = 1000
"""How many elements of a tensor or an array are read when the value has more bytes."""
READ_FROM = ("cpu", "cuda")
"""Devices whose tensors are read; others might have to compute first."""


def count_of(tensor: Any) -> int:
    """Return torch's count of in-place changes of a tensor, inverted if it requires a gradient."""
    try:
        return ~tensor._version if tensor.requires_grad else tensor._version  # type: ignore[no-any-return]
    except (RuntimeError, AttributeError):  # an inference tensor
        return 0


class Checksums:
    """The checksums of the tensors, arrays and buffers in one value.

    The same tensors in the same order are read to the same extent each time.
    """

    def __init__(self) -> None:
        self._left = MOST_SUMMED

    def of_tensor(self, tensor: Any) -> int:
        """Return the checksum of a tensor; 0 if it has no memory that could be read."""
        try:
            return self._of_parts(tensor)
        except RAISED:  # the user's own kind of tensor, or a GPU after an error
            return 0

    def of_array(self, array: Any) -> int:
        """Return the checksum of a NumPy array, of whatever subclass."""
        numpy = sys.modules["numpy"]
        plain = array.view(numpy.ndarray)
        if not self._takes(plain.nbytes):
            plain = plain.flat[:: plain.size // SAMPLES + 1]
        found = zlib.crc32(plain.tobytes(), _start(array))
        mask = numpy.ma.getmask(array)
        return found if mask is numpy.ma.nomask else zlib.crc32(mask.tobytes(), found)

    def of_buffer(self, buffer: Any) -> int:
        """Return the checksum of a `bytearray` or an `array`."""
        with memoryview(buffer).cast("B") as octets:
            step = 1 if self._takes(len(octets)) else len(octets) // SAMPLES + 1
            return zlib.crc32(octets if step == 1 else bytes(octets[::step]))

    def _takes(self, size: int) -> bool:
        """Return whether so many more bytes are read completely."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def _of_parts(self, tensor: Any) -> int:
        torch = sys.modules["torch"]
        if hasattr(tensor, "__tensor_flatten__") and type(tensor) is not torch.nn.Parameter:
            names, _ = tensor.__tensor_flatten__()
            sums = [self.of_tensor(getattr(tensor, name)) for name in names]
            return zlib.crc32(repr(sums).encode())
        if not _is_block(torch, tensor):
            return 0
        start, flat = _start(tensor), tensor.detach().as_subclass(torch.Tensor)
        if not self._takes(flat.nbytes):
            step = flat.numel() // SAMPLES + 1
            if flat.is_contiguous():
                flat = flat.reshape(-1)[::step]
            else:  # to make it flat would copy all of it
                some = torch.arange(0, flat.numel(), step, device=flat.device)
                flat = flat[torch.unravel_index(some, flat.shape)]
        flat = flat.cpu().contiguous()
        # Not by `numpy()`, after which torch refuses to resize the user's tensor.
        size = flat.numel() * flat.itemsize
        return zlib.crc32((ctypes.c_char * size).from_address(flat.data_ptr()), start)


def _start(value: Any) -> int:
    """Return the checksum of a tensor's or array's shape and dtype."""
    return hash((tuple(value.shape), value.dtype)) & 0xFFFFFFFF


def _is_block(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor is a block of memory that is there."""
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if own or tensor.layout is not torch.strided or tensor.is_nested or not tensor.numel():
        return False
    last = tensor.storage_offset() + sum(
        step * (size - 1) for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    there = tensor.untyped_storage().nbytes() >= (last + 1) * tensor.itemsize
    return tensor.device.type in READ_FROM and there


def memory_of(value: Any, sums: Checksums) -> Any:
    """Return what tells whether a tensor, array or model has other values; None for others."""
    if is_a(value, "torch.nn", "Module"):
        return [memory_of(one, sums) for one in (*value.parameters(), *value.buffers())]
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return count_of(value), sums.of_tensor(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return sums.of_array(value)
    return None
