"""Updates an object on a rank in place to the state of the notebook's object."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.kinds import GROWING, PYTHONS, is_own, slots_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class State:
    """The state of an object, with which another object is updated in place.

    Other references to that object see the change, as in the notebook.
    """

    def __init__(self, content: Any) -> None:
        self._content = content
        self._kind: type | None = None
        """The class of an object that has attributes."""
        self._attributes = dict[str, Any]()
        self._slots = dict[str, Any]()
        self._factory: Any = None
        """What makes the values that a `defaultdict` lacks."""
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
        base = _container(kind)
        found = cls(None if base is None else _content(value, base))
        found._factory = getattr(value, "default_factory", None) if base is defaultdict else None
        if base is not None and kind is base:
            return found
        known = is_own(kind) or hasattr(kind, "__dataclass_fields__")
        settings = known or kind in (SimpleNamespace, Namespace)
        if isinstance(value, type) or not settings or not _shows_all(kind, base):
            return None
        found._kind, found._attributes = kind, dict(getattr(value, "__dict__", {}))
        found._slots = {name: slot.__get__(value) for name, slot in slots_of(kind, value)}
        return found

    def give_to(self, value: Any) -> None:
        """Update `value` in place."""
        for part, state in self._inside:
            state.give_to(part)
        if self._kind is not None:
            self._give_attributes(value, self._kind)
        base: Any = _container(type(value))  # whose methods an own class may have replaced
        if base is bytearray:
            value[:] = self._content
        elif base is not None:
            base.clear(value)
            if base is defaultdict:
                value.default_factory = self._factory
            (base.extend if issubclass(base, (list, deque)) else base.update)(value, self._content)

    def _give_attributes(self, value: Any, kind: type) -> None:
        if type(value) is not kind:
            value.__class__ = kind
        if hasattr(value, "__dict__"):
            vars(value).clear()
            vars(value).update(self._attributes)
        for _, slot in slots_of(kind, value):
            slot.__delete__(value)
        for name, slot in slots_of(kind):
            if name in self._slots:
                slot.__set__(value, self._slots[name])


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


def _container(kind: type) -> Any:
    """Return the type of a plain container that a class is or extends; None for others."""
    return next((each for each in kind.__mro__ if each in GROWING or each is bytearray), None)


def _content(value: Any, base: Any) -> Any:
    """Return what a container holds, whatever methods its class has replaced."""
    if issubclass(base, dict):
        return dict(base.items(value))
    return [*base.__iter__(value)]


def _shows_all(kind: type, base: type | None) -> bool:
    """Return whether objects keep all their state in attributes and in a container's content."""
    if kind is SimpleNamespace:
        return True
    known = (base or object).__mro__
    return all(each in known or each.__flags__ & PYTHONS for each in kind.__mro__)
