"""Finds the observers of a prepared model, and combines their statistics over ranks."""

from __future__ import annotations

import sys
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import torch

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

LIBRARIES = ("torchao.quantization.pt2e", "torch.ao.quantization")
"""Libraries with observers; the second is older, deprecated and much the same."""
BASES = ("ObserverBase", "AffineQuantizedObserverBase", "FakeQuantizeBase")

EXTREMES = ("MinMaxObserver", "PerChannelMinMaxObserver")
AVERAGES = ("MovingAverageMinMaxObserver", "MovingAveragePerChannelMinMaxObserver")
HISTOGRAMS = ("HistogramObserver",)
NOTHING = ("PlaceholderObserver", "NoopObserver", "FixedQParamsObserver", "ReuseInputObserver")
"""Classes by name, not by `isinstance`: the moving averages are subclasses of the extremes."""

SETTINGS = (
    "dtype", "qscheme", "quant_min", "quant_max", "ch_axis", "bins", "averaging_constant"
)  # fmt: skip


def find(model: nn.Module) -> dict[str, Any]:
    """Return a model's observers by name, each once, without those that keep no statistics."""
    bases = tuple(_bases())
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, bases) and not _keeps_nothing(module)
    }


def check(observers: dict[str, Any]) -> None:
    """Raise `UsageError` if the statistics of an observer cannot be combined."""
    if not observers:
        raise UsageError(
            "the model has no observers: prepare it first, with torchao's prepare_pt2e for example"
        )
    known = EXTREMES + AVERAGES + HISTOGRAMS
    odd = {name: kind(one) for name, one in observers.items() if kind(one) not in known}
    if odd:
        told = ", ".join(f"{name} ({what})" for name, what in odd.items())
        raise UsageError(
            f"observers whose statistics cannot be combined over ranks: {told}. Supported are "
            f"{', '.join(known)}; the fake quantization of a model that is being trained is for "
            "nbdist.quantization.sync_fake_quantize"
        )


def kind(observer: object) -> str:
    """Return the name of an observer's class."""
    return type(observer).__name__


def described(observer: object) -> str:
    """Return an observer's class and the settings on which its scales depend."""
    of = {name: getattr(observer, name) for name in SETTINGS if hasattr(observer, name)}
    return " ".join([kind(observer), *(f"{name}={value}" for name, value in of.items())])


def _bases() -> Iterator[type]:
    for library in LIBRARIES:
        module = sys.modules.get(library)  # imported, if the model has its observers
        for base in BASES:
            if hasattr(module, base):
                yield getattr(module, base)


def _keeps_nothing(observer: object) -> bool:
    return kind(observer) in NOTHING or bool(getattr(observer, "is_dynamic", False))


class Extremes:
    """The statistics of an observer of minimum and maximum."""

    def __init__(self, observer: Any) -> None:
        self.observer = observer

    def begin(self) -> None:
        """Discard earlier statistics."""
        if hasattr(self.observer, "ch_axis"):  # the number of channels is not known yet
            self.observer.min_val.resize_(0)
            self.observer.max_val.resize_(0)
        else:
            self.observer.min_val.fill_(torch.inf)
            self.observer.max_val.fill_(-torch.inf)

    def seen(self) -> Any:
        """Return this rank's statistics; None if it has seen no data."""
        low, high = self.observer.min_val, self.observer.max_val
        if not low.numel() or bool((low > high).all()):
            return None
        return low.cpu(), high.cpu()

    def combine(self, seen: list[Any]) -> None:
        """Set the combined statistics of all ranks."""
        pairs = [pair for pair in seen if pair is not None]
        if not pairs:
            return
        low = torch.stack([pair[0] for pair in pairs]).amin(0)
        high = torch.stack([pair[1] for pair in pairs]).amax(0)
        self.observer.min_val.resize_(low.shape).copy_(low)
        self.observer.max_val.resize_(high.shape).copy_(high)


class Average(Extremes):
    """A moving average over ranks, which depends on the order of the batches.

    The order is the first batch of each rank, then the second batch of each rank, and so on: the
    order in which one rank sees the batches that `ShardedBatchSampler` distributes.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__(observer)
        self._batches: list[list[Tensor]] = []

    def next_batch(self) -> None:
        """Start a new batch."""
        self._batches.append([])

    def note(self, x: Tensor) -> Tensor:
        """Replace the observer's `forward` while the model runs."""
        if not self._batches:  # only a part of the model was run
            self.next_batch()
        both = extremes(self.observer, x)
        self._batches[-1].append(stand_in(self.observer, both, x.dim()).cpu())
        return x

    def seen(self) -> list[list[Tensor]]:
        """Return the extremes of this rank's data, batch by batch."""
        return self._batches

    def combine(self, seen: list[Any]) -> None:
        """Set the combined statistics of all ranks."""
        for batches in zip_longest(*seen, fillvalue=()):
            for tensor in chain.from_iterable(batches):
                self.observer(tensor.to(self.observer.min_val.device))


class Histogram(Extremes):
    """A histogram over ranks, in two passes: first the range over all ranks, then the counts.

    Torch's own histogram takes one pass. It stretches its bins when the range grows, which spreads
    counts over wrong bins and depends on the order of the batches. With fixed bins the counts are
    integers, and their sum does not depend on the order.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__(observer)
        self.elements = self.counted = 0
        self._counts = torch.zeros(observer.bins, dtype=torch.float64)

    def stretch(self, x: Tensor) -> Tensor:
        """Replace the observer's `forward` in the first pass."""
        values = _finite(x)
        if values.numel():
            low, high = torch.aminmax(values)
            self.observer.min_val.copy_(torch.minimum(self.observer.min_val, low))
            self.observer.max_val.copy_(torch.maximum(self.observer.max_val, high))
        self.elements += values.numel()
        return x

    def count(self, x: Tensor) -> Tensor:
        """Replace the observer's `forward` in the second pass."""
        values = _finite(x)
        if values.numel():
            low, high = self.observer.min_val.item(), self.observer.max_val.item()
            inside = values.clamp(low, high)  # on a GPU the last bits may differ between passes
            self._counts += torch.histc(inside, self.observer.bins, low, high).cpu()
        self.counted += values.numel()
        return x

    def counts(self) -> Tensor:
        """Return this rank's counts."""
        return self._counts

    def add(self, counts: list[Tensor]) -> None:
        """Set the sum of the counts of all ranks."""
        total = torch.stack(counts).sum(0)
        self.observer.histogram.resize_(total.shape).copy_(total)


def _finite(x: Tensor) -> Tensor:
    """Leave out infinities, as torch's histogram does: they are clipped anyway."""
    values = x.detach().float()
    finite = values.abs() != torch.inf
    return values if bool(finite.all()) else values[finite]


def extremes(observer: Any, x: Tensor) -> Tensor:
    """Return the smallest and largest values, of each channel if the observer has them."""
    x = x.detach().to(observer.min_val.dtype)
    axis = getattr(observer, "ch_axis", None)
    if not x.numel():
        shape = () if axis is None else (x.shape[axis],)
        return torch.stack([x.new_full(shape, torch.inf), x.new_full(shape, -torch.inf)])
    if axis is None:
        return torch.stack(torch.aminmax(x))
    return torch.stack(torch.aminmax(x.transpose(0, axis).flatten(1), dim=1))


def stand_in(observer: Any, both: Tensor, dims: int) -> Tensor:
    """Return a tensor with this number of dimensions and these extremes."""
    if bool((both[0] > both[1]).any()):  # there were no values
        return both.new_empty(0)
    if not hasattr(observer, "ch_axis"):
        return both
    axis = observer.ch_axis % dims
    shape = [1] * max(dims, 2)
    shape[axis], shape[axis == 0] = both.shape[1], 2
    return (both if axis else both.T).reshape(shape)


KINDS: dict[str, type[Extremes]] = {
    **dict.fromkeys(EXTREMES, Extremes),
    **dict.fromkeys(AVERAGES, Average),
    **dict.fromkeys(HISTOGRAMS, Histogram),
}


def statistics(observers: dict[str, Any]) -> dict[str, Extremes]:
    """Return each observer's statistics, by name."""
    return {name: KINDS[kind(one)](one) for name, one in observers.items()}
