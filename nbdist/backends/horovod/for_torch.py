"""The ``horovod`` backend with PyTorch: devices, optimizers, comparing and copying models."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any

from nbdist.machine import gpus

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbdist.wire.group_reports import Digest, Outline


class Torch:
    """PyTorch's part of the ``horovod`` backend; see `engine_ranks.Framework`."""

    def __init__(self) -> None:
        self.hvd: Any = importlib.import_module("horovod.torch")
        self._torch: Any = importlib.import_module("torch")
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps = importlib.import_module("nbdist.backends.models.steps").Steps()

    def device(self, local_rank: int) -> Any:
        """Return the rank's device; a GPU becomes the current one."""
        if not self._torch.cuda.is_available():
            return self._torch.device("cpu")
        there = self._torch.cuda.device_count()
        device = self._torch.device("cuda", gpus.of_rank(local_rank, there))
        self._torch.cuda.set_device(device)
        return device

    def install(self) -> None:
        """Register the optimizers that are created, and their steps."""
        self._steps.install()
        make = self.hvd.DistributedOptimizer

        @functools.wraps(make)
        def watched(*args: Any, **options: Any) -> Any:
            optimizer = make(*args, **options)
            self._optimizers.add(optimizer)
            kind: Any = type(optimizer)  # a class that Horovod makes for each optimizer
            kind.__reduce_ex__ = refuse_to_travel
            return optimizer

        self.hvd.DistributedOptimizer = watched

    def settle(self, *, first: bool) -> None:
        """Reset the optimizers after a step that may have been interrupted."""
        del first
        for optimizer in list(self._optimizers):
            _settle(optimizer)

    def begin(self, namespace: dict[str, object], job: str) -> None:
        """Begin to count a cell's optimizer steps."""
        self._steps.begin(namespace, job)

    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str] = (), *, every: bool = True
    ) -> dict[str, Digest]:
        """Return digests of the models and optimizers of this rank, by their variables' paths."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        together = {id(one) for group in groups for one in group["params"]}
        comparing = _comparing().Comparing(self._steps, jobs, together=together, every=every)
        found: dict[str, Digest] = comparing.digests(_trained(namespace))
        return found

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        comparing = _comparing()
        return sum(comparing.weight(thing) for thing in _trained(namespace).values())

    def outline(self, thing: Any) -> Outline:
        """Return what must be the same on all ranks to copy this object."""
        found: Outline = _outlines().outline(thing)
        return found

    def sync(self, thing: Any, source: int) -> None:
        """Copy an object, whose outline is the same on all ranks, from rank `source`."""
        if isinstance(thing, self._torch.nn.Module):
            # Not the state dict, which lacks the buffers that are not saved.
            self.hvd.broadcast_parameters(_outlines().whole_state(thing), root_rank=source)
        elif isinstance(thing, self._torch.Tensor):
            self.hvd.broadcast_(thing.detach(), root_rank=source, name="nbdist.sync")
        else:
            # In one object: Horovod's own broadcast of an optimizer's state waits forever if ranks
            # have states of different parameters.
            here = self.hvd.rank() == source
            mine = thing.state_dict() if here else None
            told = self.hvd.broadcast_object(mine, source, name="nbdist.sync")
            if not here:
                thing.load_state_dict(told)


def _comparing() -> Any:  # a module that needs torch
    return importlib.import_module("nbdist.backends.models.equality")


def _outlines() -> Any:  # it needs torch, too
    return importlib.import_module("nbdist.backends.models.outlines")


def _trained(namespace: dict[str, object]) -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module(
        "nbdist.backends.models.trained_objects"
    ).trained(namespace)
    return found


def refuse_to_travel(optimizer: Any, protocol: int) -> Any:
    """Refuse to pickle an optimizer: pickle would silently drop all of Horovod's state."""
    del optimizer, protocol
    raise TypeError(
        "a Horovod optimizer cannot be copied from its rank: create it on each rank with "
        "hvd.DistributedOptimizer"
    )


def _settle(optimizer: Any) -> None:
    """Drop the reductions of an interrupted step, as Horovod's `load_state_dict` does."""
    inside = vars(optimizer)  # Horovod's last release; there is no public API for this
    inside |= {"_handles": {}, "_synchronized": False, "_should_synchronize": True}
    for key in inside["_allreduce_delay"]:
        inside["_allreduce_delay"][key] = optimizer.backward_passes_per_step
    for key in inside["_group_counts"]:
        inside["_group_counts"][key] = 0
