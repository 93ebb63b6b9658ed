"""The parts of a script, and an order in which each has what it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EMPTY: dict[type, str] = {list: "[]", dict: "{}", set: "{*()}"}


@dataclass
class Part:
    """One name of the notebook in the script."""

    name: str
    kind: str
    """`import`, `written` (a value or another name for one), `source`, `value` (in a file)."""
    text: str = ""
    place: tuple[int, int] = (0, 0)
    """The cell and line where the notebook has it."""
    at_once: dict[str, None] = field(default_factory=dict)
    """Names that must have their values when the script comes to this part."""
    later: dict[str, None] = field(default_factory=dict)
    """Names that are needed when it is called."""
    calls: set[str] = field(default_factory=set)
    """Of the names needed at once those that are called then."""
    rebinds: set[str] = field(default_factory=set)
    """Names that its code binds anew with `global`."""
    alias: str = ""
    """The name that it is another one for."""
    together: list[str] = field(default_factory=list)
    """Names of all values that are loaded with this one, since they have objects in common."""


@dataclass
class Parts:
    """All of them."""

    imports: list[str] = field(default_factory=list)
    ordered: list[Part] = field(default_factory=list)
    """All but imports; values are among them where something needs them at once."""
    late: list[str] = field(default_factory=list)
    """The other values, loaded together behind all definitions."""
    again: list[str] = field(default_factory=list)
    """Statements that give containers their values once more."""
    every: dict[str, Any] = field(default_factory=dict)
    """All names, with their values in the notebook."""
    by_value: list[str] = field(default_factory=list)
    """Names of values that are or hold functions or classes without source."""


class Circle(Exception):
    """Two parts need each other at once; the class or function of this name cannot be source."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _NotYet(Circle):
    """Definitions need each other at once, which is so only if code says what is never run."""


class _Emptied(Circle):
    """Two parts need each other at once; the container of this name begins empty."""


def in_place(name: str, value: Any, text: str) -> str:
    """Return what gives a name its value again: a container remains the one it is."""
    if isinstance(value, list):
        return f"{name}[:] = {text}"
    if isinstance(value, (dict, set)):
        return f"{name}.clear()\n{name}.update({text})"
    return f"{name} = {text}"


class Order:
    """Puts parts in an order in which each has what it needs."""

    def __init__(self, parts: dict[str, Part], into: Parts) -> None:
        self._parts, self._into = parts, into
        self._begun: list[str] = []
        self._placed: set[str] = set()
        self._called: set[str] = set()
        self._emptied: set[str] = set()

    def order(self) -> None:
        """Fill in the parts, small values first, then definitions as the notebook has them."""
        every = self._parts.values()
        written = [part for part in every if part.kind == "written"]
        sources = sorted((p for p in every if p.kind == "source"), key=lambda part: part.place)
        values = [part for part in every if part.kind == "value"]
        for part in (*written, *sources):
            self._visit(part, now=False, called=False)
        for part in values:
            for name in part.at_once:
                # Code of a class that runs when its objects are loaded finds what it uses.
                if name in part.calls:
                    self._call(name)
                else:
                    self._need(name)
        self._into.late += [part.name for part in values if part.name not in self._placed]

    def _visit(self, part: Part, *, now: bool, called: bool) -> None:
        """Place a part behind what it needs.

        Parameters
        ----------
        part
            The part.
        now
            Whether it must have its value before the definition that comes next.
        called
            Whether that definition may call it, so that all it uses must be there, too.
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
        """Place what a call uses; what needs the very thing being defined cannot be used by it."""
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
        """Let what definitions may change have the notebook's value in the end."""
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
        """Break a circle that has come back to `name`."""
        circle = [self._parts[each] for each in self._begun[self._begun.index(name) :]]
        circle = [part for part in circle if part.name not in self._placed]
        sources = [part for part in self._parts.values() if part.kind == "source"]
        held = {name for part in sources for name in part.at_once}
        for part in circle:
            empty = type(self._into.every[part.name]) in EMPTY and part.name not in held
            if part.kind == "value" and empty and not part.together:
                # A registry, say: decorators fill it, and in the end it is the notebook's.
                raise _Emptied(part.name)
        first = next(part.name for part in circle if part.kind == "source")
        raise Circle(first) if any(part.kind == "value" for part in circle) else _NotYet(first)
