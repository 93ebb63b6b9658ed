"""Reads scalars of many libraries as numbers; on GPUs and XLA later, without waiting."""

from __future__ import annotations

import sys
import threading
from typing import Any

_streams: dict[Any, Any] = {}
"""For each GPU, a stream on which copies are fetched, so that no one waits for the training's."""

MOST_UNSENT = 1000
"""A loop that logs more than this without ending a step (`torch_xla.sync`) does not need its graphs
kept whole."""


class Later:
    """A scalar whose computation is only queued so far."""

    __slots__ = ()

    def there(self) -> bool:
        """Whether the scalar can be read without waiting for the training. Any thread."""
        raise NotImplementedError

    def value(self) -> float:
        """Return the number, after a wait if necessary. Any thread."""
        raise NotImplementedError


class OnGpu(Later):
    """A scalar on a GPU: a copy, and an event that marks when the copy is finished."""

    __slots__ = ("_copy", "_event")

    def __init__(self, tensor: Any) -> None:
        # Both are queued behind the computation of the value: nothing waits here.
        self._copy = tensor.detach().clone()
        torch = sys.modules["torch"]
        with torch.cuda.device(tensor.device):
            self._event = torch.cuda.Event()
            self._event.record()

    def there(self) -> bool:
        """See `Later`."""
        return bool(self._event.query())

    def value(self) -> float:
        """See `Later`."""
        torch, device = sys.modules["torch"], self._copy.device
        self._event.synchronize()
        if device not in _streams:
            _streams[device] = torch.cuda.Stream(device)
        # Without `device`, this thread would use GPU 0, and every rank would take memory there.
        with torch.cuda.device(device), torch.cuda.stream(_streams[device]):
            return float(self._copy.item())


class OnXla(Later):
    """A scalar in the graph that XLA will compile: reading it now would split the graph.

    A copy becomes a result of the step. Our thread fetches it after the step was submitted
    (`torch_xla.sync`); at the end of the cell the thread that ends the cell fetches it.
    """

    __slots__ = ("_copy", "_sent", "_thread")
    unsent = 0
    """How many scalars wait for the end of their step."""

    def __init__(self, tensor: Any) -> None:
        self._copy = tensor.detach().clone()
        self._sent, self._thread = False, threading.get_ident()
        OnXla.unsent += 1
        sys.modules["torch_xla.core.xla_model"].add_step_closure(self._note_sent)

    def _note_sent(self) -> None:
        self._sent = True
        OnXla.unsent -= 1

    def there(self) -> bool:
        """See `Later`."""
        return self._sent or threading.get_ident() == self._thread

    def value(self) -> float:
        """See `Later`."""
        return float(self._copy.item())


def fetched(value: float | Later) -> float:
    """Return a number, fetched from its device if necessary. Any thread."""
    return value.value() if isinstance(value, Later) else value


def read(name: str, value: Any) -> float | Later:
    """Return a scalar as a number, or as an object that is read later.

    Raises
    ------
    TypeError
        If the value is not a scalar; the message gives its name.
    """
    if isinstance(value, (int, float)):
        return _float(name, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(name, value)
    item = getattr(value, "item", None)
    if item is not None:
        try:
            value = item()
        except (TypeError, ValueError) as err:
            raise TypeError(_refused(name, value)) from err
    if value is None or isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(_refused(name, value))
    return _float(name, value)


def _of_tensor(name: str, value: Any) -> float | Later:
    # Each attribute of a tensor takes a microsecond, so a tensor on the CPU is read at once.
    if not value.is_cpu:
        if not _is_number(value):
            raise TypeError(_refused(name, value))
        if value.is_cuda:
            return OnGpu(value)
        if value.device.type == "xla" and OnXla.unsent < MOST_UNSENT:
            return OnXla(value)
    try:
        return float(value.item())
    except (RuntimeError, TypeError):
        if _is_number(value):  # then its device has failed
            raise
        raise TypeError(_refused(name, value)) from None  # torch's message adds nothing


def _is_number(tensor: Any) -> bool:
    return bool(tensor.numel() == 1 and not tensor.is_complex())


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
