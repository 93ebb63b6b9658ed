"""The memory of tensors in a script's data file, in which arrays lie that share it.

Only `torch.save` keeps the memory of tensors one. So such an array, as `tensor.numpy()` makes it,
is rebuilt from the tensor's memory, not the other way round. The script needs torch and NumPy only.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from nbdist.rank.values.overlaps import Span, is_here, placed, span_of


class _Octets:
    """Unpickles as an array over all bytes of a flat tensor."""

    def __init__(self, flat: Any) -> None:
        self._flat = flat

    def __reduce__(self) -> Any:
        return sys.modules["torch"].Tensor.numpy, (_Bytes(self._flat),)


class _Bytes:
    """Unpickles as a flat tensor's bytes."""

    def __init__(self, flat: Any) -> None:
        self._flat = flat

    def __reduce__(self) -> Any:
        torch = sys.modules["torch"]
        return torch.Tensor.view, (self._flat, torch.uint8)


class TensorMemory:
    """The memory of the tensors in one data file.

    Parameters
    ----------
    storages
        The storages that pickling the tensors has met.
    """

    def __init__(self, storages: Iterable[Any]) -> None:
        places: dict[int, tuple[Span, Any]] = {}
        for storage in storages:
            untyped = getattr(storage, "_untyped_storage", storage)
            if is_here(untyped) and untyped.nbytes() and untyped.data_ptr() not in places:
                flat = _flat(untyped, getattr(storage, "dtype", None))
                if flat is not None:
                    places[untyped.data_ptr()] = span_of(untyped), _Octets(flat)
        self._starts = sorted(places)
        self._places = [places[start] for start in self._starts]

    def reduce(self, array: Any) -> Any:
        """Reduce an array that lies in the memory of a tensor; NotImplemented for others."""
        if not self._places:
            return NotImplemented
        span = span_of(array)
        at = bisect_right(self._starts, span.start) - 1
        if at < 0 or not self._places[at][0].has(span):
            return NotImplemented
        around, octets = self._places[at]
        return placed(array, octets, around.start)


def _flat(untyped: Any, dtype: Any) -> Any:
    """Return a tensor over a whole storage, of the type with which the storage is saved."""
    torch = sys.modules["torch"]
    try:
        return torch.empty(0, dtype=dtype or torch.uint8).set_(untyped)
    except RuntimeError:  # a quantized one
        return None
