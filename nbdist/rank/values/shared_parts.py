"""References in a parcel to objects that the ranks already have, instead of copies.

For example, an optimizer that is sent after its model must update this model's parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.memory_there import CLOSURE, INSIDE, OF_MODEL, Places, Way, find
from nbdist.rank.values.overlaps import Overlaps
from nbdist.rank.values.parts_inside import in_attributes, inside, is_model, of_model

CONTAINERS = (list, dict, set)
"""Types that pickle copies without calling a reducer."""


class Parts:
    """Objects that the receivers have, with the path to each."""

    def __init__(self, is_stale: Callable[[str], bool] = lambda _: True) -> None:
        self._is_stale = functools.cache(is_stale)
        """Whether the receivers may have the model of this name with older attributes."""
        self._found: dict[int, tuple[object, Way]] = {}
        self.met: dict[str, None] = {}
        """Names to which pickled values referred."""
        self.steered: dict[str, None] = {}
        """Names of optimizers that pickled values hold, and of models that these update."""
        self.updated: set[int] = set()
        """The ids of the parameters that optimizers in pickled values update."""
        self.copied: set[str] = set()
        """Names to which nothing may refer."""
        self.met_inside: dict[str, None] = {}
        self.steered_inside: dict[str, None] = {}
        self.copied_inside: set[str] = set()
        """As above, of names for what is only inside of their values."""
        self._steers: dict[type, bool] = {}
        self.containers: set[int] = set()
        """The ids of those that are lists, dicts or sets."""
        self.overlaps = Overlaps()
        """What shares memory in the parcel."""
        self._places: tuple[Any, Places] | None = None
        """The memory of these objects, and for how many of them it was looked up."""

    def add(self, name: str, value: object) -> None:
        """Add the value of a name, with a model's parts and a function's closure cells."""
        models = of_model(value) if is_model(value) else ()
        for part, how, path in ((value, "", ""), *models, *_of_function(value)):
            # The object is kept, so that no other object can get its id.
            _, (_, known, _) = self._found.get(id(part), (None, (name, INSIDE, "")))
            if known == INSIDE:  # its own name is better
                self._found[id(part)] = part, (name, how, path)
            if type(part) in CONTAINERS:
                self.containers.add(id(part))
        self._places = None

    def add_inside(self, name: str, value: object) -> None:
        """Add what the value of a name holds, after all values themselves."""
        self._add_held(inside(value), name, INSIDE)

    def add_attributes(self, name: str, model: object) -> None:
        """Add what the modules of a model have as attributes, after all values themselves."""
        self._add_held(in_attributes(model), name, OF_MODEL)

    def _add_held(self, parts: Iterable[tuple[object, str]], name: str, how: str) -> None:
        for part, path in parts:
            self._found.setdefault(id(part), (part, (name, how, path)))
            if type(part) in CONTAINERS:
                self.containers.add(id(part))
        self._places = None

    def add_earlier(self, name: str, parts: Iterable[tuple[object, str]]) -> list[object]:
        """Add what the receivers have inside of a name by paths in its older state, and return it.

        Not what they have elsewhere, too.
        """
        present = [key for key, (_, way) in self._found.items() if way[:2] == (name, INSIDE)]
        for key in present:  # paths in its present state
            del self._found[key]
        added = []
        for part, path in parts:
            way = name, INSIDE, path
            known = self._found.get(id(part))
            if known is None or not self._may_refer(known[1]):
                self._found[id(part)] = part, way
                added.append(part)
                if type(part) in CONTAINERS:
                    self.containers.add(id(part))
        self.copied_inside.discard(name)
        return added

    def forget_met(self) -> None:
        """Forget to what values have referred so far."""
        for met in (self.met, self.met_inside, self.steered, self.steered_inside):
            met.clear()

    def reduce(self, obj: object) -> Any:
        """Return a reduction of `obj` to a reference; NotImplemented if it must be copied."""
        kind = type(obj)
        if kind not in self._steers:
            self._steers[kind] = is_a(obj, "torch.optim", "Optimizer")
        if self._steers[kind]:
            self._steer(obj)
        way = self.way_to(obj)
        return NotImplemented if way is None else (find, way)

    def way_to(self, obj: object) -> Way | None:
        """Return the arguments of `find` for `obj`; None if the receiver does not have it."""
        found = self._found.get(id(obj))
        if found is None or not self._may_refer(found[1]):
            return None
        self._meet(found[1])
        return found[1]

    def _may_refer(self, way: Way) -> bool:
        name, how, _ = way
        if name in self.copied or (how == INSIDE and name in self.copied_inside):
            return False
        return how != OF_MODEL or not self._is_stale(name)

    def _meet(self, way: Way) -> None:
        name, how, _ = way
        if how != OF_MODEL:
            (self.met_inside if how == INSIDE else self.met)[name] = None

    def in_memory(self, obj: Any) -> Any:
        """Return a reduction of an array or a storage to memory that the receivers have."""
        state = len(self._found), frozenset(self.copied), frozenset(self.copied_inside)
        if self._places is None or self._places[0] != state:
            there = (found for found in self._found.values() if self._may_refer(found[1]))
            self._places = state, Places(there)
        reduced, way = self._places[1].reduce(obj)
        if way is not None:
            self._meet(way)
        return reduced

    def _steer(self, optimizer: Any) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self.updated.update(map(id, parameters))
        for part in (optimizer, *parameters):
            if found := self._found.get(id(part)):
                name, how, _ = found[1]
                if how != OF_MODEL:
                    (self.steered_inside if how == INSIDE else self.steered)[name] = None


def _of_function(value: Any) -> Iterator[tuple[object, str, str]]:
    if isinstance(value, FunctionType):
        for number, cell in enumerate(value.__closure__ or ()):
            yield cell, CLOSURE, str(number)
