"""Parts of what the ranks have already: what refers to them finds them there, not copies.

An optimizer that is brought after its model must move that model's parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from nbdist.rank.values.pickles import namespace

CLOSURE = "__closure__"
CONTAINERS = (list, dict, set)
"""Kinds that pickle copies without asking how."""


class Parts:
    """Objects that receivers find by themselves, with the way to each."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, tuple[str, str, str]]] = {}
        self.met: dict[str, None] = {}
        """Names that something referred to."""
        self.containers: set[int] = set()
        """Which of them pickle would copy without asking."""

    def add(self, name: str, value: object) -> None:
        """Take in the value of a name; of a model all of it, of a function its closure's cells."""
        for part, how, path in ((value, "", ""), *_of_model(value), *_of_function(value)):
            # Held along with its id, which would be somebody else's later.
            self._found.setdefault(id(part), (part, (name, how, path)))
            if type(part) in CONTAINERS:
                self.containers.add(id(part))

    def reduce(self, obj: object) -> Any:
        """Return how the receiver finds `obj`, NotImplemented if it does not."""
        way = self.way_to(obj)
        return NotImplemented if way is None else (find, way)

    def way_to(self, obj: object) -> tuple[str, str, str] | None:
        """Return what `find` needs to find `obj` at the receiver's, None if it is not there."""
        found = self._found.get(id(obj))
        if found is None:
            return None
        self.met[found[1][0]] = None
        return found[1]


def find(name: str, how: str, path: str) -> Any:
    """Return a part of what `name` is bound to here."""
    value = namespace()[name]
    if how == CLOSURE:
        return value.__closure__[int(path)]
    return getattr(value, how)(path) if how else value


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
