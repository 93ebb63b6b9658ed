"""Quantization-aware training on ranks: fake quantization that sees the batches of all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbdist.collectives import ranks
from nbdist.errors import UsageError
from nbdist.quantization.observers import AVERAGES, EXTREMES, LIBRARIES, extremes, kind, stand_in

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

FAKES = ("FakeQuantize", "FusedMovingAvgObsFakeQuantize")
OBSERVERS = EXTREMES + AVERAGES
"""What their input's minimum and maximum are all they look at."""


def sync_fake_quantize(model: nn.Module, *, process_group: ProcessGroup | None = None) -> nn.Module:
    """Let the fake quantization of a model see the batches of all ranks, in every step.

    Left alone, each rank's scales follow its own part of a batch, and what is kept in the end is
    rank 0's. After this they follow the minimum and maximum over all ranks, before the step uses
    them, so N ranks train the model that one rank trains with batches N times as large, but for
    the order in which gradients are added. It is to fake quantization what `SyncBatchNorm` is to
    batch norm, and in the same way ranks must run the model equally often while observers are
    enabled.

    Parameters
    ----------
    model
        What torchao's ``prepare_qat_pt2e`` has made, not yet in a `DistributedDataParallel`. It
        is changed in place.
    process_group
        The ranks that train together; by default all.

    Returns
    -------
    nn.Module
        The model.

    Raises
    ------
    UsageError
        If there is no fake quantization in it, or one of an unknown kind; nothing was changed.
    """
    fakes = _find(model)
    odd = {
        name: f"{kind(fake)} of {kind(fake.activation_post_process)}"
        for name, fake in fakes.items()
        if kind(fake) not in FAKES or kind(fake.activation_post_process) not in OBSERVERS
    }
    if odd or not fakes:
        told = ", ".join(f"{name} ({what})" for name, what in odd.items()) or "there is none"
        raise UsageError(
            f"no fake quantization that could be synchronised: {told}. There is a way for "
            f"{' and '.join(FAKES)} of {', '.join(OBSERVERS)}"
        )
    for fake in fakes.values():
        observer = fake.activation_post_process
        hooks = observer._forward_pre_hooks.values()  # noqa: SLF001  # torch has no public list
        if any(isinstance(hook, _Everywhere) for hook in hooks):
            continue  # it does already
        observer.register_forward_pre_hook(_Everywhere(process_group))
        _put(model, fake, _unfused(fake))
    return model


def _find(model: nn.Module) -> dict[str, Any]:
    """Return what quantizes and has an observer, each once."""
    bases = tuple(
        base
        for library in LIBRARIES
        if (base := getattr(sys.modules.get(library), "FakeQuantizeBase", None))
    )
    found: dict[str, Any] = {
        name: module for name, module in model.named_modules() if isinstance(module, bases)
    }
    return {
        name: fake
        for name, fake in found.items()
        if kind(getattr(fake, "activation_post_process", None)) != "FixedQParamsObserver"
        and not getattr(fake, "is_dynamic", False)
    }


def _unfused(fake: Any) -> nn.Module:
    """Return the same without the fused kind's C++, which observes by itself.

    Its base class leaves that to the observer, and uses the very scales that conversion will: the
    fused kind's differ from them by 1/255 where a scheme is symmetric.
    """
    plain = sys.modules[type(fake).__module__].FakeQuantize  # which that kind is derived from
    made: nn.Module = plain.__new__(plain)
    made.__dict__.update(fake.__dict__)
    return made


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in another one's place, or places: it may be shared."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            model.set_submodule(name, new)


class _Everywhere:
    """Gives an observer the minimum and maximum over ranks in place of what this rank has.

    Only what an observer has been given is changed, how it goes on from there is its own affair.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> _Everywhere:
        """Return itself: a copy of the model belongs to the same ranks."""
        return self

    def __call__(self, observer: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = args
        low, high = extremes(observer, x)
        low, high = ranks(self._group).maximum(torch.stack([-low, high]))
        return (stand_in(observer, torch.stack([-low, high]), x.dim()),)
