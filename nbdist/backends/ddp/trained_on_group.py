"""What a rank trains, its DDP models included: digests, and which ranks share a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn import Module

from nbdist.backends.models import made_equal
from nbdist.backends.models.equality import Comparing, leaves, parameters_of, weight
from nbdist.backends.models.trained_objects import bare, trained
from nbdist.backends.models.variable_paths import at, has
from nbdist.wire.group_reports import NO_WAY, Digest

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbdist.backends.groups.registry import Made
    from nbdist.backends.models.steps import Steps


class Trained:
    """The models and optimizers of one rank. Any thread.

    Parameters
    ----------
    made
        The DDP models that exist, also those to which no variable leads.
    steps
        The optimizer steps of the last cell.
    """

    def __init__(self, made: Made, steps: Steps) -> None:
        self._made, self._steps = made, steps

    def checksums(self, namespace: dict[str, object], jobs: Collection[str]) -> dict[str, Digest]:
        """Return digests of the models and optimizers, by their variables' paths."""
        shared = self._shared()
        comparing = Comparing(self._steps, jobs, shared, shared.keys())
        return comparing.digests(self._found(namespace))

    def changed(self, namespace: dict[str, object]) -> int:
        """Return how often torch has counted changes of all this since the last comparison."""
        found = self._found(namespace).values()
        parts = {id(part): part for thing in found for part in parameters_of(thing)}
        return sum(self._steps.changes_since(part) for part in parts.values())

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        return sum(weight(thing) for thing in self._found(namespace).values())

    def sharers(self, namespace: dict[str, object], path: str) -> list[int] | None:
        """Return the ranks that share the object at `path`; see `rank_group.Ddp.sharers`."""
        if not has(namespace, path):
            return None
        shared = self._shared()
        thing = at(namespace, path)
        parameters = (one for _, one in leaves(thing)) if isinstance(thing, Module) else ()
        for group in getattr(thing, "param_groups", ()):
            parameters = (*parameters, *group["params"])
        return next((shared[id(one)] for one in parameters if id(one) in shared), [])

    def _found(self, namespace: dict[str, object]) -> dict[str, Any]:
        found = trained(namespace)
        known = {id(bare(thing)) for thing in found.values()}
        for number, model in enumerate(self._made.models, start=1):
            if id(bare(model)) not in known:
                kind = type(model.module).__name__
                found[f"{kind}, DDP model {number}{NO_WAY}"] = model
        return found

    def _shared(self) -> dict[int, list[int]]:
        """Return, for the id of each parameter of a DDP model, the ranks that share it."""
        return {
            id(parameter): dist.get_process_group_ranks(model.process_group)
            for model in self._made.models
            if made_equal.has_group(model)
            for parameter in model.parameters()
        }
