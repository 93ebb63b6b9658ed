"""Short digests of a rank's values, to compare them between ranks. Main thread, idle rank."""

from __future__ import annotations

import hashlib
import sys
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

from nbdist.rank.values import keras_models
from nbdist.rank.values.describe import PLAIN, is_a
from nbdist.rank.values.user_errors import RAISED

MOST_LEAVES = 20_000
CPU_RATE, GPU_RATE = 4e8, 1e11
"""Assumed speeds in bytes a second, to skip values that would take too long."""
ORDERED = (list, tuple, deque)
MAPPINGS = (dict, OrderedDict, defaultdict)


class Unknown(Exception):
    """Equality of such values cannot be decided by a digest."""


class TooMuch(Exception):
    """The digest would take too long."""


class Digester:
    """Digests values until its time is up.

    Parameters
    ----------
    seconds
        The time limit for all values together.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._leaves = 0

    def digests(self, value: Any) -> tuple[str, str]:
        """Return a digest, and another one of a model's buffers; '' if neither can be decided.

        Under DDP buffers differ between ranks until the next forward, and nothing is wrong.

        Raises
        ------
        TooMuch
            If there is not enough time left.
        """
        self._leaves = 0
        if time.monotonic() > self._end:
            raise TooMuch
        try:
            if is_a(value, "torch.nn", "Module"):
                return self._of_tensors(value, value.parameters())
            return self._of(value, 8).hex(), ""
        except TooMuch:
            raise
        except RAISED:  # Unknown, or an error raised by the user's value
            return "", ""

    def _of(self, value: Any, depth: int) -> bytes:
        self._leaves += 1
        if self._leaves > MOST_LEAVES:
            raise TooMuch
        kind = type(value)
        if kind in PLAIN:
            return hashed(kind.__name__, value if kind is bytes else repr(value).encode())
        if kind in MAPPINGS and depth:
            pairs = [self._of(k, depth - 1) + self._of(v, depth - 1) for k, v in value.items()]
            made = getattr(getattr(value, "default_factory", None), "__qualname__", "")
            return hashed("dict", *sorted(pairs), *([made] if made else []))
        if kind in ORDERED and depth:
            return hashed(kind.__name__, *(self._of(one, depth - 1) for one in value))
        if kind in (set, frozenset) and depth:
            return hashed("set", *sorted(self._of(one, depth - 1) for one in value))
        held = keras_models.tensors_of(value)
        return self._of_data(value) if held is None else self._of_tensorflow(held)

    def _of_data(self, value: Any) -> bytes:
        if is_a(value, "torch", "Tensor"):
            return hashed(*self._of_tensors(value, [value]))
        if is_a(value, "torch.nn", "Module"):
            return hashed(*self._of_tensors(value, value.parameters()))
        if is_a(value, "torch.optim", "Optimizer"):
            state = (one for group in value.param_groups for one in group["params"])
            return hashed(*self._of_tensors(value, state))
        if is_a(value, "numpy", "ndarray") or is_a(value, "numpy", "generic"):
            return self._of_array(value)
        if is_a(value, "jax", "Array") and value.is_fully_addressable:
            self._allow(value.nbytes, gpu=False)
            return self._of_array(sys.modules["numpy"].asarray(value))
        if is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series"):
            self._allow(20 * value.size, gpu=False)  # far slower than plain bytes
            rows = sys.modules["pandas"].util.hash_pandas_object(value).to_numpy()
            return hashed("pandas", str(getattr(value, "columns", "")).encode(), rows.tobytes())
        raise Unknown

    def _of_tensors(self, value: Any, tensors: Iterable[Any]) -> tuple[str, str]:
        from nbdist.backends.models import equality  # needs torch, which exists: it made the value

        sizes = {"cpu": 0}
        for one in tensors:
            if not _is_plain(one):
                raise Unknown
            kind = one.device.type
            sizes[kind] = sizes.get(kind, 0) + one.numel() * one.element_size()
            if kind == "cuda":
                self._until_settled(one.device)
        self._allow(sizes.pop("cpu"), gpu=False)
        self._allow(sum(sizes.values()), gpu=True)
        found = equality.digests(value)
        if found is None:
            raise Unknown
        return found

    def _of_tensorflow(self, tensors: list[Any]) -> bytes:
        if not all(keras_models.on_cpu(one) for one in tensors):
            raise Unknown  # reading would wait for the GPU, perhaps for a hanging collective
        return hashed("tensorflow", *(self._of_array(one.numpy()) for one in tensors))

    def _until_settled(self, device: Any) -> None:
        """Wait for a GPU's queued work, up to the time limit: it may be a hanging collective."""
        stream = sys.modules["torch"].cuda.current_stream(device)
        while not stream.query():
            if time.monotonic() > self._end:
                raise TooMuch
            time.sleep(0.001)

    def _allow(self, size: int, *, gpu: bool) -> None:
        if size / (GPU_RATE if gpu else CPU_RATE) > self._end - time.monotonic():
            raise TooMuch

    def _of_array(self, value: Any) -> bytes:
        if value.dtype.hasobject:
            raise Unknown
        self._allow(value.nbytes, gpu=False)
        whole = sys.modules["numpy"].ascontiguousarray(value)
        head = f"{value.shape}{value.dtype}".encode()
        return hashed("array", head, whole.reshape(-1).view("uint8").data)


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor's bits can be read as numbers.

    Reading other kinds of tensors might wait for other ranks, or crash.
    """
    torch = sys.modules["torch"]
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta":
        return False
    # FSDP frees the memory of parameters that are not gathered.
    return not tensor.numel() or tensor.untyped_storage().nbytes() > 0


def hashed(*parts: Any) -> bytes:
    """Return a short hash of texts and bytes, each with its length."""
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(f"{len(data)}:".encode())
        hasher.update(data)
    return hasher.digest()
