"""An object and what it held at some time, to see later whether that has changed. Any process."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.rank.values.gradients import Compared


class Held:
    """A reference to an object, weak if the object allows it."""

    __slots__ = ("_get", "_weak")

    def __init__(self, value: object) -> None:
        self._get: Callable[[], object]
        try:
            self._get, self._weak = weakref.ref(value), True
        except TypeError:
            self._get, self._weak = lambda: value, False

    def holds(self, value: object) -> bool:
        """Return whether `value` is this object; a dead reference does not equal None."""
        return self._get() is value and not (value is None and self._weak)

    def value(self) -> object:
        """Return the object; None if it is gone."""
        return self._get()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other.holds(self._get())

    __hash__ = None  # type: ignore[assignment]


class Contents(ABC):
    """The contents of a value at some time."""

    plain = False
    """Whether the value consists of plain data, settings and code only, so a copy is equivalent;
    of an optimizer, whether the rest of it is as it was."""

    @abstractmethod
    def same(self, value: Any) -> bool:
        """Return whether the same object still has these contents."""

    def differing(self, value: Any) -> list[object]:
        """Return the objects that have changed: some inside, or the value itself."""
        return [value]

    def gradients(self) -> Compared:
        """Return whether a model's or optimizer's parameters have other gradients or values."""
        return "same"

    def may_get(self, value: Any) -> bool:
        """Return whether the other end's new state would undo no change of the same object."""
        return self.same(value)

    def got(self, value: Any) -> Contents | None:
        """Return the contents after it got such a state; None if all of it is to be looked at."""
        del value
        return None
