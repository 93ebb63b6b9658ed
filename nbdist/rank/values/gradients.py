"""The gradients of the parameters in a value: compared, and sent by themselves.

The value is a model, an optimizer, a tensor, or holds such. Ranks whose cells have not trained it
get the gradients that the notebook has computed since it was brought, in place. Kernel and ranks.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Literal

from nbdist.rank.values.checksums import count_of
from nbdist.rank.values.parts_inside import inside
from nbdist.rank.values.renewed_objects import State

Compared = Literal["same", "other", "trained"]
"""Whether parameters have the same gradients as before, others, or also other values."""


class Gradients(State):
    """The gradients of the parameters in a value, which get these in place."""

    @classmethod
    def of(cls, value: Any) -> Gradients:
        """Return the present gradients."""
        return cls([one.grad for one in parameters_of(value)])

    def fits(self, value: Any) -> bool:
        """Return whether `value` has as many parameters."""
        return len(parameters_of(value)) == len(self._content)

    def give_to(self, value: Any) -> None:
        """Put the gradients into the parameters of `value`."""
        for parameter, gradient in zip(parameters_of(value), self._content, strict=True):
            parameter.grad = gradient


def parameters_of(value: Any) -> list[Any]:
    """Return the parameters in a value, in an order that is the same for equal values."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    if isinstance(value, torch.optim.Optimizer):
        return [one for group in value.param_groups for one in group["params"]]
    held = (value, *(part for part, _ in inside(value)))
    tensors = (one for one in held if isinstance(one, torch.Tensor))
    return [one for one in tensors if one.requires_grad and one.is_leaf]


class GradientMarks:
    """Which gradients some parameters have, with torch's counts of changes of both."""

    def __init__(self, value: Any) -> None:
        self._known = [
            (weakref.ref(one), count_of(one), _mark(one.grad)) for one in parameters_of(value)
        ]

    def compared(self) -> Compared:
        """Return how these parameters have changed since."""
        found: Compared = "same"
        for ref, count, mark in self._known:
            parameter = ref()
            if parameter is None or count_of(parameter) != count:
                return "trained"
            if not _is_of(parameter.grad, mark):
                found = "other"
        return found


def _mark(grad: Any) -> tuple[weakref.ref[Any], int] | None:
    return None if grad is None else (weakref.ref(grad), count_of(grad))


def _is_of(grad: Any, mark: tuple[weakref.ref[Any], int] | None) -> bool:
    if mark is None or grad is None:
        return mark is grad
    return mark[0]() is grad and mark[1] == count_of(grad)
