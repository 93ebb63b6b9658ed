"""What a rank trains, its DDP models included: digests, and which ranks share a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor
from torch.nn import Module

from nbdist.backends.models import made_equal, outlines
from nbdist.backends.models.equality import Comparing, parameters_of, weight
from nbdist.backends.models.trained_objects import bare, trained
from nbdist.backends.models.variable_paths import at, has
from nbdist.wire.group_reports import NO_WAY, Digest, Outline

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

    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str], *, every: bool
    ) -> dict[str, Digest]:
        """Return digests of the models and optimizers, by their variables' paths."""
        shared = self._shared()
        comparing = Comparing(self._steps, jobs, shared, shared.keys(), every=every)
        return comparing.digests(self._found(namespace))

    def changed(self, namespace: dict[str, object]) -> int:
        """Return how often torch has counted changes of all this since the last comparison."""
        found = self._found(namespace).values()
        parts = {id(part): part for thing in found for part in parameters_of(thing)}
        return sum(self._steps.changes_since(part) for part in parts.values())

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        return sum(weight(thing) for thing in self._found(namespace).values())

    def outline(self, namespace: dict[str, object], path: str) -> Outline | None:
        """Return the outline of the object at `path`; see `rank_group.Ddp.outline`."""
        if not has(namespace, path):
            return None
        thing = at(namespace, path)
        told = outlines.outline(thing)
        own, shared = _parameters(thing), self._shared()
        ranks = next((shared[each] for each in own if each in shared), [])
        flat = (each for each in trained(namespace).values() if outlines.is_fsdp1(each))
        if any(own & _parameters(model) for model in flat):
            return replace(told, ranks=ranks, why=outlines.DIVIDED)
        return replace(told, ranks=ranks)

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


def _parameters(thing: Any) -> set[int]:
    """Return the ids of the parameters of a model or an optimizer, or that of a tensor."""
    if isinstance(thing, Tensor):
        return {id(thing)}
    if isinstance(thing, Module):
        return set(map(id, thing.parameters()))
    return {id(one) for group in getattr(thing, "param_groups", ()) for one in group["params"]}
