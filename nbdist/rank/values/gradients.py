"""The gradients of a model's or an optimizer's parameters: compared, and sent by themselves.

Ranks whose cells have not trained a model get the gradients that the notebook has computed since
the model was brought, in place. Kernel and ranks.
"""

from __future__ import annotations

import weakref
from typing import Any, Literal

from nbdist.rank.values.checksums import count_of
from nbdist.rank.values.renewed_objects import State

Compared = Literal["same", "other", "trained"]
"""Whether parameters have the same gradients as before, others, or also other values."""


class Gradients(State):
    """The gradients of the parameters of a model or an optimizer, which get these in place."""

    @classmethod
    def of(cls, value: Any) -> Gradients:
        """Return the present gradients."""
        return cls([one.grad for one in parameters_of(value)])

    def give_to(self, value: Any) -> None:
        """Put the gradients into the parameters of `value`."""
        for parameter, gradient in zip(parameters_of(value), self._content, strict=True):
            parameter.grad = gradient


def parameters_of(value: Any) -> list[Any]:
    """Return the parameters of a model or an optimizer, in their order."""
    if hasattr(value, "param_groups"):
        return [one for group in value.param_groups for one in group["params"]]
    return list(value.parameters())


class GradientMarks:
    """Which gradients some parameters have, with torch's counts of changes of both."""

    def __init__(self, value: Any) -> None:
        found = parameters_of(value)
        self._parameters = _counted(found)
        grads = [one.grad for one in found]
        self._gradients = [
            None if one is None else (weakref.ref(one), count_of(one)) for one in grads
        ]

    def compared(self, value: Any) -> Compared:
        """Return how the same value has changed since."""
        found = parameters_of(value)
        if _counted(found) != self._parameters:
            return "trained"
        pairs = zip(self._gradients, (one.grad for one in found), strict=True)
        return "same" if all(_is_same(known, grad) for known, grad in pairs) else "other"


def _counted(parameters: list[Any]) -> list[tuple[int, int]]:
    return [(id(one), count_of(one)) for one in parameters]


def _is_same(known: tuple[weakref.ref[Any], int] | None, grad: Any) -> bool:
    if known is None or grad is None:
        return known is grad
    return known[0]() is grad and known[1] == count_of(grad)
