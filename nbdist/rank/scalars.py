"""Numbers out of whatever libraries call a scalar."""

from __future__ import annotations

import sys
from typing import Any

_streams: dict[Any, Any] = {}
"""By GPU, a stream on which finished copies are fetched: the training's own is never waited for."""


class Later:
    """A scalar on a GPU: a copy of it, and when that will be there."""

    __slots__ = ("_copy", "_event")

    def __init__(self, tensor: Any) -> None:
        # Both are queued behind what computes the value: nothing waits here.
        self._copy = tensor.detach().clone()
        torch = sys.modules["torch"]
        with torch.cuda.device(tensor.device):
            self._event = torch.cuda.Event()
            self._event.record()

    def there(self) -> bool:
        """Whether it can be read without waiting for the training. Any thread."""
        return bool(self._event.query())

    def value(self) -> float:
        """Return the number; waits if it is not there. Any thread."""
        torch, device = sys.modules["torch"], self._copy.device
        self._event.synchronize()
        if device not in _streams:
            _streams[device] = torch.cuda.Stream(device)
        with torch.cuda.stream(_streams[device]):
            return float(self._copy.item())


def fetched(value: float | Later) -> float:
    """Return a number that may have to be fetched. Any thread."""
    return value.value() if isinstance(value, Later) else value


def read(name: str, value: Any) -> float | Later:
    """Return a scalar as a number, or as one that is read later.

    Raises
    ------
    TypeError
        If it is none; the message names it.
    """
    if isinstance(value, (int, float)):
        return _float(name, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise TypeError(_refused(name, value))
        if value.is_cuda:
            return Later(value)
        return float(value.item())
    item = getattr(value, "item", None)
    if item is not None:
        try:
            value = item()
        except (TypeError, ValueError) as err:
            raise TypeError(_refused(name, value)) from err
    if value is None or isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(_refused(name, value))
    return _float(name, value)


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except (TypeError, ValueError) as err:
        raise TypeError(_refused(name, value)) from err


def _refused(name: str, value: Any) -> str:
    shape = getattr(value, "shape", None)
    what = f"of shape {tuple(shape)}" if shape is not None and len(shape) else repr(value)[:50]
    return (
        f"nbdist.log: `{name}` is a {type(value).__name__} {what}, and not one number; "
        "log its mean, or each element under a name of its own"
    )
