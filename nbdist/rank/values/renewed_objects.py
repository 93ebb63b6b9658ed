"""Updates an object on a rank in place to the state of the notebook's object."""

from __future__ import annotations

from argparse import Namespace
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.kinds import GROWING

if TYPE_CHECKING:
    from collections.abc import Iterable

PYTHONS = 1 << 9
"""The type flag of classes that were defined in Python."""


class State:
    """The state of an object, with which another object is updated in place.

    Other references to that object see the change, as in the notebook.
    """

    def __init__(self, content: Any, kind: type | None = None) -> None:
        self._content, self._kind = content, kind
        self._inside: list[tuple[Any, State]] = []

    def hold(self, parts: Iterable[Any]) -> None:
        """Give their new states also to these objects, which have states and are or were inside."""
        states = [(part, State.of(part)) for part in parts]
        self._inside = [(part, state) for part, state in states if state is not None]

    @classmethod
    def of(cls, value: Any) -> State | None:
        """Return the state of a value; None if only the whole value can be sent."""
        if is_a(value, "torch.optim", "Optimizer"):
            return Settings.of(value)
        kind = type(value)
        if kind in GROWING or kind is bytearray:
            return cls(dict(value) if issubclass(kind, dict) else [*value])
        is_own = kind.__module__ == "__main__" or hasattr(kind, "__dataclass_fields__")
        settings = is_own or kind in (SimpleNamespace, Namespace)
        if settings and not isinstance(value, type) and _has_only_dict(value):
            return cls(dict(vars(value)), kind)
        return None

    def give_to(self, value: Any) -> None:
        """Update `value` in place."""
        for part, state in self._inside:
            state.give_to(part)
        if isinstance(value, (list, bytearray)):
            value[:] = self._content
            return
        if self._kind is not None and type(value) is not self._kind:
            value.__class__ = self._kind
        is_container = isinstance(value, (dict, set, deque))
        inside = value if is_container else vars(value)
        inside.clear()
        (inside.extend if isinstance(inside, deque) else inside.update)(self._content)


class Settings(State):
    """The settings of an optimizer; its parameters and their states stay."""

    @classmethod
    def of(cls, value: Any) -> Settings:
        """Return the present settings of each group of parameters."""
        groups = value.param_groups
        return cls([{name: group[name] for name in group if name != "params"} for group in groups])

    def give_to(self, value: Any) -> None:
        """Give `value`, which has as many groups, these settings."""
        for group, settings in zip(value.param_groups, self._content, strict=True):
            parameters = group["params"]
            group.clear()
            group.update({"params": parameters, **settings})


def _has_only_dict(value: Any) -> bool:
    """Return whether an object keeps all its state in its `__dict__`."""
    if type(value) is SimpleNamespace:
        return True
    kinds = type(value).__mro__[:-1]
    return hasattr(value, "__dict__") and all(
        kind.__flags__ & PYTHONS and not vars(kind).get("__slots__") for kind in kinds
    )
