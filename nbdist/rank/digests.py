"""Short digests of values, by which ranks tell whether they hold the same. Main thread, idle."""

from __future__ import annotations

import hashlib
import sys
import time
from collections import OrderedDict, defaultdict, deque
from typing import Any

from nbdist.rank.describe import PLAIN, is_a

MOST_LEAVES = 20_000
CPU_RATE, GPU_RATE = 1e9, 1e11
"""Bytes a second that are counted on, to pass over what would take too long."""
ORDERED = (list, tuple, deque)
MAPPINGS = (dict, OrderedDict, defaultdict)


class Unknown(Exception):
    """There is no telling whether two such values are equal."""


class TooMuch(Exception):
    """It would take too long."""


class Digester:
    """Digests values until its time is up.

    Parameters
    ----------
    seconds
        For all values together.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._leaves = 0

    def digest(self, value: object) -> str:
        """Return a digest, empty where equality has no simple meaning.

        Raises
        ------
        TooMuch
            If there is not enough time left for it.
        """
        self._leaves = 0
        if time.monotonic() > self._end:
            raise TooMuch
        try:
            return self._of(value, 8).hex()
        except TooMuch:
            raise
        except Exception:  # Unknown, or whatever a user's value raises when it is looked at
            return ""

    def _of(self, value: Any, depth: int) -> bytes:
        self._leaves += 1
        if self._leaves > MOST_LEAVES:
            raise TooMuch
        kind = type(value)
        if kind in PLAIN:
            return _hashed(kind.__name__, value if kind is bytes else repr(value).encode())
        if kind in MAPPINGS and depth:
            pairs = [self._of(k, depth - 1) + self._of(v, depth - 1) for k, v in value.items()]
            return _hashed("dict", *sorted(pairs))
        if kind in ORDERED and depth:
            return _hashed(kind.__name__, *(self._of(one, depth - 1) for one in value))
        if kind in (set, frozenset) and depth:
            return _hashed("set", *sorted(self._of(one, depth - 1) for one in value))
        return self._of_data(value)

    def _of_data(self, value: Any) -> bytes:
        if is_a(value, "torch", "Tensor"):
            self._allow(value.numel() * value.element_size(), gpu=value.device.type != "cpu")
            return _by_torch(value)
        if is_a(value, "torch.nn", "Module"):
            for one in value.parameters():
                self._allow(one.numel() * one.element_size(), gpu=one.device.type != "cpu")
            return _by_torch(value)
        if is_a(value, "torch.optim", "Optimizer"):
            return _by_torch(value)
        if is_a(value, "numpy", "ndarray") or is_a(value, "numpy", "generic"):
            return self._of_array(value)
        if is_a(value, "jax", "Array") and value.is_fully_addressable:
            self._allow(value.nbytes, gpu=False)
            return self._of_array(sys.modules["numpy"].asarray(value))
        if is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series"):
            self._allow(20 * value.size, gpu=False)  # far slower than plain bytes
            rows = sys.modules["pandas"].util.hash_pandas_object(value).to_numpy()
            return _hashed("pandas", str(getattr(value, "columns", "")).encode(), rows.tobytes())
        raise Unknown

    def _allow(self, size: int, *, gpu: bool) -> None:
        if size / (GPU_RATE if gpu else CPU_RATE) > self._end - time.monotonic():
            raise TooMuch

    def _of_array(self, value: Any) -> bytes:
        if value.dtype.hasobject:
            raise Unknown
        self._allow(value.nbytes, gpu=False)
        whole = sys.modules["numpy"].ascontiguousarray(value)
        head = f"{value.shape}{value.dtype}".encode()
        return _hashed("array", head, whole.reshape(-1).view("uint8").data)


def _hashed(*parts: Any) -> bytes:
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(f"{len(data)}:".encode())
        hasher.update(data)
    return hasher.digest()


def _by_torch(value: Any) -> bytes:
    from nbdist.backends import models  # needs torch, which has made the value

    found = models.digest(value)
    if found is None:
        raise Unknown
    return bytes.fromhex(found)
