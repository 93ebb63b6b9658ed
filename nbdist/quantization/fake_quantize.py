"""`sync_fake_quantize`: quantization-aware training with ranges over the batches of all ranks."""

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
"""Observers that use only the minimum and maximum of their input."""


def sync_fake_quantize(model: nn.Module, *, process_group: ProcessGroup | None = None) -> nn.Module:
    """Make a model's fake quantization use the batches of all ranks in every step.

    Otherwise each rank's scales follow its own part of a batch, and only those of rank 0 are kept
    in the end. After this call the scales follow the minimum and maximum over all ranks, before the
    step uses them. So N ranks train the same model as one rank with batches N times as large, apart
    from the order in which gradients are added. This is to fake quantization what `SyncBatchNorm`
    is to batch norm; likewise, all ranks must run the model equally often while observers are
    enabled.

    Parameters
    ----------
    model
        The result of torchao's ``prepare_qat_pt2e``, not yet in a `DistributedDataParallel`. It is
        changed in place.
    process_group
        The ranks that train together; by default all ranks.

    Returns
    -------
    nn.Module
        The model.

    Raises
    ------
    UsageError
        If the model has no fake quantization, or one of an unknown kind; nothing was changed.
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
            f"no fake quantization that could be synchronised: {told}. Supported are "
            f"{' and '.join(FAKES)} with {', '.join(OBSERVERS)}"
        )
    for name, fake in fakes.items():
        observer = fake.activation_post_process
        hooks = observer._forward_pre_hooks.values()  # noqa: SLF001  # torch has no public list
        if any(isinstance(hook, _Everywhere) for hook in hooks):
            continue  # it is synchronised already
        observer.register_forward_pre_hook(_Everywhere(name, process_group))
        _put(model, fake, _unfused(fake))
    return model


def _find(model: nn.Module) -> dict[str, Any]:
    """Return the fake-quantize modules that have an observer, each once."""
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
    """Return the module as its base class, without the fused C++ code, which observes by itself.

    The base class uses the observer, and exactly the scales that the conversion uses: for a
    symmetric scheme those of the fused class differ by 1/255.
    """
    plain = sys.modules[type(fake).__module__].FakeQuantize  # its base class
    made: nn.Module = plain.__new__(plain)
    made.__dict__.update(fake.__dict__)
    return made


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module by another, in all places if it is shared."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            model.set_submodule(name, new)


class _Everywhere:
    """A hook that replaces an observer's input by the minimum and maximum over all ranks.

    Only the input is changed; the observer processes it as usual.
    """

    def __init__(self, name: str, group: ProcessGroup | None) -> None:
        self._what, self._group = f"the range `{name}`", group

    def __deepcopy__(self, memo: dict[int, Any]) -> _Everywhere:
        """Return this hook: a copy of the model belongs to the same ranks."""
        return self

    def __call__(self, observer: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = args
        low, high = extremes(observer, x)
        low, high = ranks(self._group).maximum(torch.stack([-low, high]), self._what)
        return (stand_in(observer, torch.stack([-low, high]), x.dim()),)
