"""Parts of what the ranks have already: what refers to them finds them there, not copies.

An optimizer that is brought after its model must move that model's parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from nbdist.rank.pickles import namespace


class Parts:
    """Objects that receivers find by themselves, with the way to each."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, tuple[str, str, str]]] = {}
        self.met: dict[str, None] = {}
        """Names that something referred to."""

    def add(self, name: str, value: object) -> None:
        """Take in the value of a name, and if it is a model, all of it."""
        for part, how, path in ((value, "", ""), *_of_model(value)):
            # Held along with its id, which would be somebody else's later.
            self._found.setdefault(id(part), (part, (name, how, path)))

    def reduce(self, obj: object) -> Any:
        """Return how the receiver finds `obj`, NotImplemented if it does not."""
        found = self._found.get(id(obj))
        if found is None:
            return NotImplemented
        self.met[found[1][0]] = None
        return find, found[1]


def find(name: str, how: str, path: str) -> Any:
    """Return a part of what `name` is bound to here."""
    value = namespace()[name]
    return getattr(value, how)(path) if how else value


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
