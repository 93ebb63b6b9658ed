"""Horovod's part for PyTorch: the rank's device, its optimizers, models across ranks."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any

from nbdist.backends.models.variable_paths import at
from nbdist.errors import UsageError
from nbdist.machine import gpus

if TYPE_CHECKING:
    from nbdist.wire.group_reports import Digest


class Torch:
    """What the ``horovod`` backend asks of its framework; see `engine_ranks`."""

    def __init__(self) -> None:
        self.hvd: Any = importlib.import_module("horovod.torch")
        self._torch: Any = importlib.import_module("torch")
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def device(self, local_rank: int) -> Any:
        """Return the rank's device, made the current one if it is a GPU."""
        if not self._torch.cuda.is_available():
            return self._torch.device("cpu")
        there = self._torch.cuda.device_count()
        device = self._torch.device("cuda", gpus.of_rank(local_rank, there))
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

    def checksums(self, namespace: dict[str, object]) -> dict[str, Digest]:
        """Return digests of what this rank trains, by how variables lead to it."""
        found: dict[str, Digest] = _comparing().Comparing().digests(_trained(namespace))
        return found

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        comparing = _comparing()
        return sum(comparing.weight(thing) for thing in _trained(namespace).values())

    def sync(self, namespace: dict[str, object], path: str, source: int, group: str = "") -> None:
        """Make what a path leads to what it is on rank `source`."""
        del group  # all ranks share it
        thing = at(namespace, path)
        if isinstance(thing, self._torch.nn.Module):
            self.hvd.broadcast_parameters(thing.state_dict(), root_rank=source)
        elif isinstance(thing, self._torch.optim.Optimizer):
            self.hvd.broadcast_optimizer_state(thing, root_rank=source)
        elif hasattr(thing, "load_state_dict"):
            thing.load_state_dict(self.hvd.broadcast_object(thing.state_dict(), source))
        else:
            raise UsageError(f"a {type(thing).__name__} is no model or optimizer")


def _comparing() -> Any:  # a module that needs torch
    return importlib.import_module("nbdist.backends.models.equality")


def _trained(namespace: dict[str, object]) -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module(
        "nbdist.backends.models.trained_objects"
    ).trained(namespace)
    return found


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
