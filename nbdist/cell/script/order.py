"""Orders the parts of a script, so that every part comes after the parts that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EMPTY: dict[type, str] = {list: "[]", dict: "{}", set: "{*()}"}


@dataclass
class Part:
    """A name of the notebook, as it is defined in the script."""

    name: str
    kind: str
    """`import`, `written` (a value or an alias, as source), `source` (a definition), or `value` (in
    a data file)."""
    text: str = ""
    place: tuple[int, int] = (0, 0)
    """The number of the cell, and the line, where the notebook defines it."""
    at_once: dict[str, None] = field(default_factory=dict)
    """Names that must have their values when the script reaches this part."""
    later: dict[str, None] = field(default_factory=dict)
    """Names that are needed when this part is called."""
    mentions: dict[str, None] = field(default_factory=dict)
    """Names that only annotations mention: left out if they cannot be in the script."""
    calls: set[str] = field(default_factory=set)
    """The names in `at_once` that are called at that time."""
    rebinds: set[str] = field(default_factory=set)
    """Names that its code binds with `global`."""
    alias: str = ""
    """The other name for the same object, if this part is an alias."""
    together: list[str] = field(default_factory=list)
    """Names of all values that must be loaded together with this one, as they share objects."""


@dataclass
class Parts:
    """All parts of a script, in order."""

    imports: list[str] = field(default_factory=list)
    ordered: list[Part] = field(default_factory=list)
    """The parts other than imports. Values are here only if a definition needs them at once."""
    late: list[str] = field(default_factory=list)
    """The other values, loaded together after all definitions."""
    again: list[str] = field(default_factory=list)
    """Statements that restore the values of containers, which definitions may have changed."""
    every: dict[str, Any] = field(default_factory=dict)
    """All names, with their values in the notebook."""
    by_value: list[str] = field(default_factory=list)
    """Names of values that are, or contain, functions or classes without source."""
    dealing: list[str] = field(default_factory=list)
    """Names of values that contain what deals data out to ranks."""


class Circle(Exception):
    """Parts need each other at once: this class or function must be pickled, not source."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _NotYet(Circle):
    """Definitions need each other at once, so some of this code is never run."""


class _Emptied(Circle):
    """Parts need each other at once: the container of this name starts empty."""


def in_place(name: str, value: Any, text: str) -> str:
    """Return a statement that restores the value of a name; a container stays the same object."""
    match value:
        case list():
            return f"{name}[:] = {text}"
        case dict() | set():
            return f"{name}.clear()\n{name}.update({text})"
        case _:
            return f"{name} = {text}"


class Order:
    """Sorts the parts of a script by their dependencies."""

    def __init__(self, parts: dict[str, Part], into: Parts) -> None:
        self._parts, self._into = parts, into
        self._begun: list[str] = []
        self._placed: set[str] = set()
        self._called: set[str] = set()
        self._emptied: set[str] = set()

    def order(self) -> None:
        """Fill in `Parts`: small values first, then definitions in the notebook's order."""
        every = self._parts.values()
        written = [part for part in every if part.kind == "written"]
        sources = sorted((p for p in every if p.kind == "source"), key=lambda part: part.place)
        values = [part for part in every if part.kind == "value"]
        for part in (*written, *sources):
            self._visit(part, now=False, called=False)
        for part in values:
            for name in part.at_once:
                # A class whose methods run while its objects are loaded needs its own names before.
                if name in part.calls:
                    self._call(name)
                else:
                    self._need(name)
        self._into.late += [part.name for part in values if part.name not in self._placed]

    def _visit(self, part: Part, *, now: bool, called: bool) -> None:
        """Place a part after the parts that it needs.

        Parameters
        ----------
        part
            The part.
        now
            Whether the next definition needs this part's value.
        called
            Whether that definition may call this part, which then needs its own names, too.
        """
        name = part.name
        if part.kind == "import" or (part.kind == "value" and not now):
            return
        if name not in self._placed:
            if name in self._begun:
                return
            self._begun.append(name)
            self._place_behind(part)
            for each in part.later:
                self._need(each, later=True)
        if called and name not in self._called:
            self._called.add(name)
            self._restore(part)
            if name not in self._emptied:
                for each in (*part.at_once, *part.later):
                    self._call(each)

    def _call(self, name: str) -> None:
        """Place the names that a call uses, except those that need the part being defined."""
        begun = list(self._begun)
        try:
            self._need(name, now=True, called=True, later=True)
        except _NotYet:
            self._begun = [each for each in self._begun if each in (*begun, *self._placed)]

    def _place_behind(self, part: Part) -> None:
        placed, names = part, part.together or [part.name]
        try:
            for name in dict.fromkeys(n for each in names for n in self._parts[each].at_once):
                if name not in names:
                    self._need(name, now=True, called=name in part.calls or part.kind == "value")
        except _Emptied as emptied:
            if emptied.name != part.name:
                self._begun.remove(part.name)
                raise
            kind: type = type(self._into.every[part.name])
            placed = Part(part.name, "written", f"{part.name} = {EMPTY[kind]}")
            self._emptied.add(part.name)
            self._into.late.append(part.name)
        self._placed.update(names)
        self._into.ordered.append(placed)

    def _restore(self, part: Part) -> None:
        """Restore the notebook's value of a part that definitions may change."""
        value = self._into.every[part.name]
        if part.kind != "written" or part.alias:
            return
        rebound = any(part.name in each.rebinds for each in self._parts.values())
        if rebound or isinstance(value, (list, dict, set)):
            self._into.again.append(in_place(part.name, value, part.text.partition(" = ")[2]))

    def _need(
        self, name: str, *, now: bool = False, called: bool = False, later: bool = False
    ) -> None:
        part = self._parts.get(name)
        if part is None:
            return
        if name in self._begun and name not in self._placed and not later:
            self._break(name)
        self._visit(part, now=now, called=called)

    def _break(self, name: str) -> None:
        """Break a dependency cycle that has returned to `name`."""
        circle = [self._parts[each] for each in self._begun[self._begun.index(name) :]]
        circle = [part for part in circle if part.name not in self._placed]
        sources = [part for part in self._parts.values() if part.kind == "source"]
        held = {name for part in sources for name in part.at_once}
        for part in circle:
            empty = type(self._into.every[part.name]) in EMPTY and part.name not in held
            if part.kind == "value" and empty and not part.together:
                # For example a registry that decorators fill; at the end it gets the notebook's
                # value.
                raise _Emptied(part.name)
        first = next(part.name for part in circle if part.kind == "source")
        raise Circle(first) if any(part.kind == "value" for part in circle) else _NotYet(first)
