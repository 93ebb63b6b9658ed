"""What a model or an optimizer holds. Kernel and ranks.

Tensors are compared by torch's count of in-place changes; if it has not moved, by checksums.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterable
from typing import Any

from nbdist.rank.values.checksums import Checksums, count_of
from nbdist.rank.values.gradients import Compared, GradientMarks, parameters_of
from nbdist.rank.values.held import Contents
from nbdist.rank.values.kinds import GROWING
from nbdist.rank.values.opened_objects import (
    attributes_of_model,
    attributes_of_tensor,
    settings_of,
)
from nbdist.rank.values.small_contents import Apart, Recorded, dumped


class _Tensors:
    """The values of tensors at some time."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        sums = Checksums()
        self._known = [
            (weakref.ref(one), count_of(one), (sums.of_tensor(one), attributes_of_tensor(one)))
            for one in tensors
        ]

    def same(self) -> bool:
        tensors = []
        for ref, count, _ in self._known:
            tensor = ref()
            if tensor is None or count_of(tensor) != count:
                return False
            tensors.append(tensor)
        sums = Checksums()
        return all(
            (sums.of_tensor(tensor), attributes_of_tensor(tensor)) == known
            for tensor, (*_, known) in zip(tensors, self._known, strict=True)
        )


class ModelContents(Contents):
    """A model's submodules, tensors and attributes."""

    def __init__(self, model: Any) -> None:
        self._tensors = _Tensors([*model.parameters(), *model.buffers()])
        self._modules = [(weakref.ref(one), _parts_of(one)) for one in model.modules()]
        self._attributes = _attributes_of(model)
        self._gradients = GradientMarks(model)

    def same(self, value: Any) -> bool:
        """Return whether the model still has these contents."""
        if not self._same_parts():
            return False
        was, now = self._attributes, _attributes_of(value)
        return now is was if now is None or was is None else now.told() == was.told()

    def differing(self, value: Any) -> list[object]:
        """Return the objects that have changed: some inside, or the model itself."""
        if self._attributes is None or not self._same_parts():
            return [value]
        return self._attributes.differs(_attributes_of(value)) or [value]

    def _same_parts(self) -> bool:
        # While all these objects exist, no other object can have their ids.
        for part, parts in self._modules:
            module = part()
            if module is None or _parts_of(module) != parts:
                return False
        return self._tensors.same()

    def gradients(self) -> Compared:
        """Return whether its parameters have other gradients or values."""
        return self._gradients.compared()


class OptimizerContents(Contents):
    """An optimizer's settings, its parameters and the tensors of its state."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._settings = _settings(optimizer)
        self._ids, tensors = _state_of(optimizer)
        self._tensors = _Tensors(tensors)
        self._gradients = GradientMarks(optimizer)

    @property
    def plain(self) -> bool:  # type: ignore[override]
        """Whether only settings may have changed since, which can be sent by themselves."""
        optimizer = self._optimizer()
        return optimizer is not None and self._same_state(optimizer) and self.gradients() == "same"

    def gradients(self) -> Compared:
        """Return whether its parameters have other gradients or values."""
        return self._gradients.compared()

    def same(self, value: Any) -> bool:
        """Return whether the optimizer still has these contents."""
        return self.may_get(value) and self._same_state(value)

    def may_get(self, value: Any) -> bool:
        """Return whether it still has these settings: no others are sent alone."""
        return _settings(value) == self._settings

    def got(self, value: Any) -> Contents:
        """Return the contents after it got other settings."""
        renewed = copy.copy(self)
        renewed._settings = _settings(value)
        return renewed

    def _same_state(self, value: Any) -> bool:
        return _state_of(value)[0] == self._ids and self._tensors.same()


def _settings(optimizer: Any) -> tuple[Any, ...] | None:
    found = dumped(settings_of(optimizer))
    return None if found is None else found.told()


def _state_of(optimizer: Any) -> tuple[list[int], list[Any]]:
    """Return an optimizer's parameters and the tensors of its state, and the ids of all."""
    torch = sys.modules["torch"]
    inside = [
        one for state in optimizer.state.values() if type(state) is dict for one in state.values()
    ]
    tensors = parameters_of(optimizer)
    tensors += [one for one in inside if isinstance(one, torch.Tensor)]
    return [*map(id, tensors)], tensors


def _parts_of(module: Any) -> list[tuple[str, int]]:
    parts = *module._modules.items(), *module._parameters.items(), *module._buffers.items()
    return [(name, id(part)) for name, part in parts]


def _attributes_of(model: Any) -> Recorded | None:
    found = [
        {name: Apart(one) if type(one) in GROWING else one for name, one in held.items()}
        for held in attributes_of_model(model)
    ]
    return dumped(found, map(id, model.modules()))
