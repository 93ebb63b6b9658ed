"""Records what the notebook had under the names that cells bind on the ranks. Kernel's main thread.

So it is known which end has bound a name last. The ranks alone know whether they still have the
value that a cell has bound there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbdist.cell.names.used_names import definitions
from nbdist.rank.looking.likeness import likeness, text_of
from nbdist.rank.values.contents import contents
from nbdist.rank.values.held import Contents, Held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType

    from nbdist.wire.inspection import Look

ABSENT = object()
GONE = Held(object())
"""Holds an object to which no name is bound."""
DEFINED = (
    "`{0}` was defined again in the notebook after a cell had defined it on the ranks. This cell "
    "uses the ranks' `{0}`; `--bring {0}` brings the notebook's."
)
ASSIGNED = (
    "`{0}` got {1} in the notebook after a cell had assigned {2} on the ranks. This cell uses the "
    "ranks' value; `--bring {0}` brings the notebook's."
)


@dataclass
class _Then:
    """What the notebook had under a name when a cell bound the name on the ranks."""

    held: Held
    contents: Contents | None

    def still(self, value: object) -> bool:
        """Whether the notebook still has this object, in the same state."""
        return self.held.holds(value) and (self.contents is None or self.contents.same(value))


class BoundOnRanks:
    """The names that cells have bound or used on the ranks, and the notebook's objects then."""

    def __init__(self) -> None:
        self._then: dict[str, _Then] = {}
        self._defined: dict[str, list[str]] = {}
        """For functions and classes of the ranks, the names that they read."""
        self._cells = 0
        """How many cells have run on the ranks."""
        self._used: dict[str, int] = {}
        """The number of the last cell that used the name."""
        self._looked: dict[str, int] = {}
        """The number of the last cell after which ranks were asked about the name."""
        self._told: dict[str, int] = {}
        """The number of the last cell whose change of the name the user knows."""

    def ran(
        self, code: CodeType, binds: Iterable[str], uses: Iterable[str], space: Mapping[str, Any]
    ) -> None:
        """Record a cell for the ranks, before it runs."""
        for name in dict.fromkeys(binds):
            self.settle(name, space)
        self._defined.update(definitions(code))
        self._cells += 1
        self._used.update(dict.fromkeys(uses, self._cells))

    def settle(self, name: str, space: Mapping[str, Any]) -> None:
        """Take the notebook's present value for no newer than the ranks'."""
        value = space.get(name, ABSENT)
        self._then[name] = _Then(Held(value), None if value is ABSENT else contents(value))

    def bound_here(self, names: Iterable[str]) -> None:
        """Record that a plain cell has bound names, perhaps to the same object (`epochs = 3`)."""
        for name in names:
            if name in self._then:
                self._then[name] = _Then(GONE, None)

    def look_at(self, name: str, value: object) -> None:
        """Record whether the notebook has changed a value, which may get back to what it was."""
        if self.is_newer(name, value):
            self._then[name] = _Then(GONE, None)

    def returned(self, name: str, space: Mapping[str, Any]) -> None:
        """Record that the notebook has got the ranks' value."""
        self.settle(name, space)
        self._told.pop(name, None)

    def brought(self, names: Iterable[str]) -> None:
        """Record that the ranks have got the notebook's values."""
        for name in names:
            self._then.pop(name, None)

    def forget(self, space: Mapping[str, Any]) -> None:
        """Release values that the notebook no longer has."""
        for name, then in self._then.items():
            if not then.held.holds(space.get(name, ABSENT)):
                then.held, then.contents = GONE, None

    def __contains__(self, name: str) -> bool:
        return name in self._then

    def is_newer(self, name: str, value: object) -> bool:
        """Whether the notebook has bound or changed a name after cells had bound it there."""
        then = self._then.get(name)
        return then is not None and not then.still(value)

    def is_older(self, name: str, value: object) -> bool:
        """Whether cells have bound a name there after the notebook had bound it."""
        then = self._then.get(name)
        return then is not None and then.still(value)

    def reads(self, name: str) -> list[str]:
        """Return the names that a function or class of the ranks reads."""
        return self._defined.get(name, [])

    # -- names that a plain cell reads -----------------------------------------------------------

    def unseen(self, names: Iterable[str]) -> list[str]:
        """Return those of these names that cells on the ranks may have changed unnoticed."""
        used = [name for name in names if name in self._used]
        return [name for name in used if self._looked.get(name, 0) < self._cells]

    def looked(self, names: Iterable[str]) -> None:
        """Record that the ranks were asked about names while no cell was running there."""
        self._looked.update(dict.fromkeys(names, self._cells))

    def tells(self, name: str) -> bool:
        """Record that a change of a name is told; return whether it was not told before."""
        before, self._told[name] = self._told.get(name), self._used[name]
        return before != self._used[name]


def same(value: Any, look: Look) -> bool:
    """Whether a rank has an equal value; False if that is not decided."""
    if look.likeness:
        return look.likeness == likeness(value)
    return bool(look.value) and look.value == text_of(value)


def note_on(name: str, value: Any, looks: list[Look]) -> str:
    """Say that the notebook's value is newer than that of the ranks."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__code__")):
        return DEFINED.format(name)
    there, here = {look.value for look in looks}, text_of(value)
    if len(there) > 1 or "" in there or not here:
        return ASSIGNED.format(name, "a new value", "a value")
    return ASSIGNED.format(name, f"the value {here}", *there)
