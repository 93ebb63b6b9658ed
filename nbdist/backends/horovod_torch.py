"""Horovod's part for PyTorch: the rank's device, its optimizers, models across ranks."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import Any

from nbdist.errors import UsageError


class Torch:
    """What the ``horovod`` backend asks of its framework; see `nbdist.backends.horovod`."""

    def __init__(self) -> None:
        self.hvd: Any = importlib.import_module("horovod.torch")
        self._torch: Any = importlib.import_module("torch")
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def device(self, local_rank: int) -> Any:
        """Return the rank's device, made the current one if it is a GPU."""
        if not self._torch.cuda.is_available():
            return self._torch.device("cpu")
        device = self._torch.device("cuda", local_rank)
        self._torch.cuda.set_device(device)
        return device

    def install(self) -> None:
        """Watch the optimizers that are made."""
        make = self.hvd.DistributedOptimizer

        @functools.wraps(make)
        def watched(*args: Any, **options: Any) -> Any:
            optimizer = make(*args, **options)
            self._optimizers.add(optimizer)
            kind: Any = type(optimizer)  # one that Horovod has made for it alone
            kind.__reduce_ex__ = refuse_to_travel
            return optimizer

        self.hvd.DistributedOptimizer = watched

    def settle(self, *, first: bool) -> None:
        """Bring the optimizers to rest, after a step that may have been broken off."""
        del first
        for optimizer in list(self._optimizers):
            _settle(optimizer)

    def checksums(self, namespace: dict[str, object]) -> dict[str, str]:
        """Return a digest of each model's parameters and each optimizer's state."""
        models = importlib.import_module("nbdist.backends.models")
        kinds = self._torch.nn.Module, self._torch.optim.Optimizer
        found = {n: models.digest(v) for n, v in list(namespace.items()) if isinstance(v, kinds)}
        return {name: digest for name, digest in found.items() if digest is not None}

    def sync(self, model: Any, source: int) -> None:
        """Make a model, or an optimizer's state, what it is on rank `source`."""
        if isinstance(model, self._torch.nn.Module):
            self.hvd.broadcast_parameters(model.state_dict(), root_rank=source)
        elif isinstance(model, self._torch.optim.Optimizer):
            self.hvd.broadcast_optimizer_state(model, root_rank=source)
        else:
            raise UsageError(f"a {type(model).__name__} is no model or optimizer")


def refuse_to_travel(optimizer: Any, protocol: int) -> Any:
    """Refuse what pickle would do: leave out all that is Horovod's, and nothing would tell."""
    del optimizer, protocol
    raise TypeError(
        "an optimizer of Horovod's lives on its rank: make it there with hvd.DistributedOptimizer"
    )


def _settle(optimizer: Any) -> None:
    """Forget the reductions of a step that was broken off, as its `load_state_dict` does."""
    inside = vars(optimizer)  # Horovod's last release; there is no public way
    inside |= {"_handles": {}, "_synchronized": False, "_should_synchronize": True}
    for key in inside["_allreduce_delay"]:
        inside["_allreduce_delay"][key] = optimizer.backward_passes_per_step
    for key in inside["_group_counts"]:
        inside["_group_counts"][key] = 0
