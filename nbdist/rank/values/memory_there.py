"""Finds objects, and their memory, that the receiver of a parcel has. Both ends.

An array or a tensor that shares memory with one that the ranks have becomes a view of theirs.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from nbdist.errors import NbdistError
from nbdist.rank.values.overlaps import (
    Span,
    is_storage,
    kept,
    may_overlap,
    placed,
    root_of,
    span_of,
)
from nbdist.rank.values.parts_inside import follow
from nbdist.rank.values.pickles import namespace

CLOSURE = "__closure__"
INSIDE = "inside"
OF_MODEL = "of model"
"""Like INSIDE, in a model, whose tensors may differ."""
Way = tuple[str, str, str]
"""A name, and how to get a part of its value: the arguments of `find`."""


def find(name: str, how: str, path: str) -> Any:
    """Return a part of this process's value of `name`."""
    value = namespace()[name]
    if how == CLOSURE:
        return value.__closure__[int(path)]
    if how in (INSIDE, OF_MODEL):
        return follow(value, path)
    return getattr(value, how)(path) if how else value


class _Place(NamedTuple):
    """The memory of an array or a tensor that the receivers have."""

    span: Span
    before: int
    """How many bytes of it lie before the array."""
    way: Way


class _MemoryThere:
    """Unpickles as the memory of a place at the receiver."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    def __reduce__(self) -> Any:
        span, before, way = self._place
        return find_memory, (way, before, span.end - span.start)


class Places:
    """The memory of the arrays and tensors among some objects, each with the way to it."""

    def __init__(self, parts: Iterable[tuple[object, Way]]) -> None:
        torch = sys.modules.get("torch")
        self._storages: dict[int, Way] = {}
        found = []
        for part, way in parts:
            memory: Any = part
            if torch is not None and type(part) in (torch.Tensor, torch.nn.Parameter):
                memory = _storage_of(part)
                if memory is not None:
                    self._storages.setdefault(memory._cdata, way)
            elif not may_overlap(type(part)):
                continue
            span = None if memory is None else kept(memory)
            if span is not None:
                found.append(_Place(span, span_of(memory).start - span.start, way))
        self._places = _outermost(found)
        self._there = [_MemoryThere(place) for place in self._places]

    def reduce(self, obj: Any) -> tuple[Any, Way | None]:
        """Reduce an array or a storage to memory there, and return whose; else NotImplemented."""
        if is_storage(obj) and obj._cdata in self._storages:
            way = self._storages[obj._cdata]
            return (find_storage, (way, obj.nbytes(), obj.device.type == "cpu")), way
        if self._places:
            span = span_of(obj)
            at = bisect_right(self._places, ((span.start + 1,),)) - 1
            if at >= 0 and self._places[at].span.has(span):
                place = self._places[at]
                return placed(obj, self._there[at], place.span.start), place.way
        return NotImplemented, None


def _outermost(places: list[_Place]) -> list[_Place]:
    """Return the places that lie in no other, in the order of their addresses."""
    found, end = list[_Place](), 0
    for place in sorted(places, key=lambda place: (place.span.start, -place.span.end)):
        if place.span.end > end:
            found.append(place)
            end = place.span.end
    return found


def _storage_of(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a sparse tensor
        return None


def find_storage(way: Way, size: int, on_cpu: bool) -> Any:
    """Return the storage of a tensor of this process; a copy if only that lies on a GPU."""
    found = find(*way).untyped_storage()
    _check(way[0], found.nbytes() == size)
    return found.cpu() if on_cpu else found


def find_memory(way: Way, before: int, size: int) -> Any:
    """Return the memory of an array or a tensor of this process, from `before` bytes before it."""
    part, numpy = find(*way), sys.modules["numpy"]
    if not isinstance(part, numpy.ndarray):
        import torch

        octets = torch.empty(0, dtype=torch.uint8).set_(part.untyped_storage().cpu()).numpy()
        _check(way[0], len(octets) == size)
        return octets
    root = root_of(part)
    if root.dtype.hasobject:
        _check(way[0], root.nbytes == size and root.flags.c_contiguous)
        return root
    _check(way[0], root.flags.forc)
    plain = numpy.ndarray.view(root, numpy.ndarray)
    first = span_of(part).start - before - span_of(root).start
    octets = (plain if plain.flags.c_contiguous else plain.T).reshape(-1).view("u1")
    _check(way[0], 0 <= first <= len(octets) - size)
    return octets[first : first + size]


def _check(name: str, right: bool) -> None:
    if not right:
        raise NbdistError(
            f"the memory of `{name}` has another size or layout here; `--bring {name}` brings the "
            "notebook's"
        )
