"""References in a parcel to objects that the ranks already have, instead of copies.

For example, an optimizer that is sent after its model must update this model's parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.memory_there import CLOSURE, Places, Way, find
from nbdist.rank.values.overlaps import Overlaps

CONTAINERS = (list, dict, set)
"""Types that pickle copies without calling a reducer."""


class Parts:
    """Objects that the receivers have, with the path to each."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, Way]] = {}
        self.met: dict[str, None] = {}
        """Names to which pickled values referred."""
        self.steered: dict[str, None] = {}
        """Names of optimizers that pickled values hold, and of models that these update."""
        self.copied: set[str] = set()
        """Names to which nothing may refer."""
        self._steers: dict[type, bool] = {}
        self.containers: set[int] = set()
        """The ids of those that are lists, dicts or sets."""
        self.overlaps = Overlaps()
        """What shares memory in the parcel."""
        self._places: tuple[Any, Places] | None = None
        """The memory of these objects, and for how many of them it was looked up."""

    def add(self, name: str, value: object) -> None:
        """Add the value of a name, with a model's parts and a function's closure cells."""
        for part, how, path in ((value, "", ""), *_of_model(value), *_of_function(value)):
            # The object is kept, so that no other object can get its id.
            self._found.setdefault(id(part), (part, (name, how, path)))
            if type(part) in CONTAINERS:
                self.containers.add(id(part))
        self._places = None

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
        if found is None or found[1][0] in self.copied:
            return None
        self.met[found[1][0]] = None
        return found[1]

    def in_memory(self, obj: Any) -> Any:
        """Return a reduction of an array or a storage to memory that the receivers have."""
        state = len(self._found), frozenset(self.copied)
        if self._places is None or self._places[0] != state:
            there = (found for found in self._found.values() if found[1][0] not in self.copied)
            self._places = state, Places(there)
        reduced, way = self._places[1].reduce(obj)
        if way is not None:
            self.met[way[0]] = None
        return reduced

    def _steer(self, optimizer: Any) -> None:
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        for part in (optimizer, *parameters):
            if found := self._found.get(id(part)):
                self.steered[found[1][0]] = None


def _of_function(value: Any) -> Iterator[tuple[object, str, str]]:
    if isinstance(value, FunctionType):
        for number, cell in enumerate(value.__closure__ or ()):
            yield cell, CLOSURE, str(number)


def _of_model(value: Any) -> Iterator[tuple[object, str, str]]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return
    for path, part in value.named_modules():
        yield part, "get_submodule", path
    for path, part in value.named_parameters():
        yield part, "get_parameter", path
    for path, part in value.named_buffers():
        yield part, "get_buffer", path
