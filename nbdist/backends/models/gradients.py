"""Tells whose gradients a cell has not changed: no backward pass of these models was broken off.

A backward pass adds to the gradients before they are reduced. A pass that was left midway is known
to the model's reducer; what it does not know is one that was broken off at its end. Main thread.
"""

from __future__ import annotations

import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbdist.backends.models.equality import changes
from nbdist.backends.models.pending import pending

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    Mark = tuple[weakref.ref[torch.Tensor], int]
    """A gradient, and how often it was changed in place."""


class Gradients:
    """The gradients of models, as they were when the present cell began."""

    def __init__(self) -> None:
        self._before: weakref.WeakKeyDictionary[torch.nn.Module, list[Mark | None]] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self, models: Iterable[torch.nn.Module]) -> None:
        """Note the gradients that each model has."""
        self._before = weakref.WeakKeyDictionary({model: _marks(model) for model in models})

    def kept(self) -> set[torch.nn.Module]:
        """Return the models whose gradients are those which they had then.

        A model without any may have lost what a backward pass gave it. So it is among these models
        only while a backward pass of it is pending.
        """
        same = {model for model, marks in self._before.items() if _are_same(marks, _marks(model))}
        bare = {model for model in same if not any(self._before[model])}
        return same - bare | pending(bare).keys()


def _marks(model: Any) -> list[Mark | None]:
    """Return marks of the gradients that every backward pass of a DDP model changes.

    One is enough, as a pass that begins with it ends only after all the others. But some models
    have parameters which a pass may leave out.
    """
    wanted = (parameter for parameter in model.parameters() if parameter.requires_grad)
    every = model.find_unused_parameters or model.static_graph
    grads = [parameter.grad for parameter in (wanted if every else islice(wanted, 1))]
    return [None if grad is None else (weakref.ref(grad), changes(grad)) for grad in grads]


def _are_same(marks: list[Mark | None], now: list[Mark | None]) -> bool:
    """Return whether marks are of the same gradients: `==` of references compares the tensors."""
    return len(marks) == len(now) and all(
        one is other or (one and other and one[0]() is other[0]() and one[1] == other[1])
        for one, other in zip(marks, now, strict=True)
    )
