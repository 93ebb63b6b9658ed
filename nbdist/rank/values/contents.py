"""Whether a value is what it was: the same object, with the same content. Any process.

An object that is changed in place is the same object. What is small and plain is compared by its
pickle, which holds a mark for each part that is not; models and tensors by torch's own count of
changes in place.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import sys
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.kinds import GROWING, PLAIN, is_open
from nbdist.rank.values.user_errors import RAISED

MOST_BYTES = 1 << 16
"""Of a pickle that is compared with the last one: what that takes, each cell waits for."""
MOST_SUMMED = 1 << 22
"""Bytes of an array that is compared as a whole, a millisecond for each million."""
SAMPLES = 1000
"""Values of a large container or array that are compared."""
MOST_PARTS = 300
"""Objects in it that are not plain data."""
FIXED = (type, BuiltinFunctionType, ModuleType, CodeType)
WRAPS: dict[type, Callable[[Any], Any]] = {
    functools._lru_cache_wrapper: lambda found: getattr(found, "__wrapped__", None),
    property: lambda found: (found.fget, found.fset, found.fdel),
    staticmethod: lambda found: found.__func__,
    classmethod: lambda found: found.__func__,
}
"""What holds functions, with how to find them."""


class Held:
    """One object, not kept alive where that can be avoided."""

    __slots__ = ("_get", "_weak")

    def __init__(self, value: object) -> None:
        self._get: Callable[[], object]
        try:
            self._get, self._weak = weakref.ref(value), True
        except TypeError:
            self._get, self._weak = lambda: value, False

    def holds(self, value: object) -> bool:
        """Return whether this is the object; None is never one that has died."""
        return self._get() is value and not (value is None and self._weak)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other.holds(self._get())

    __hash__ = None  # type: ignore[assignment]


class Contents(ABC):
    """What a value held at some time."""

    plain = False
    """Whether all of it is plain data, settings and code: a copy is as good as the original."""

    @abstractmethod
    def same(self, value: Any) -> bool:
        """Return whether the value, which is the same object, still holds the same."""


def contents(value: Any) -> Contents | None:
    """Return what a value holds now; None where that cannot change or cannot be told quickly."""
    kind = type(value)
    if kind in PLAIN or kind is ModuleType:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.nn.Module):
        return _Model(value)
    found = _pickled(value)
    if found is not None:
        return found
    return _Sample(value) if kind in GROWING else None


class _Sample(Contents):
    """Of what is too large to be compared as a whole: which objects are in some of its places."""

    def __init__(self, value: Any) -> None:
        self._some = _some(value)

    def same(self, value: Any) -> bool:
        return _some(value) == self._some


def _some(value: Any) -> list[int]:
    """Return the length of a container, and ids: those of shuffled or changed ones are others."""
    if isinstance(value, list):
        found = value[:: len(value) // SAMPLES + 1]
    else:
        inside = value.values() if isinstance(value, dict) else value
        found = [*itertools.islice(inside, SAMPLES)]
    return [len(value), *map(id, found)]


class _Model(Contents):
    """A model's parts: which they are, their tensors, and their plain attributes."""

    def __init__(self, model: Any) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._tensors = [(weakref.ref(one), _count(one)) for one in tensors]
        self._modules = [
            (weakref.ref(one), _parts_of(one), _plain_of(one)) for one in model.modules()
        ]

    def same(self, value: Any) -> bool:  # noqa: ARG002 - its parts are known
        # As long as all of them live, nothing else can have their ids.
        for ref, count in self._tensors:
            tensor = ref()
            if tensor is None or _count(tensor) != count:
                return False
        for part, parts, plain in self._modules:
            module = part()
            if module is None or _parts_of(module) != parts:
                return False
            get, was = plain
            try:
                if get(vars(module)) != was:
                    return False
            except KeyError:
                return False
        return True


def _parts_of(module: Any) -> list[int]:
    parts = *module._modules.values(), *module._parameters.values(), *module._buffers.values()
    return list(map(id, parts))


def _plain_of(module: Any) -> tuple[Callable[[Any], Any], Any]:
    """Return what gives a module's attributes that are single values, and what it gives now."""
    found = vars(module)
    get = itemgetter("training", *(name for name in found if type(found[name]) in PLAIN))
    return get, get(found)


def _count(tensor: Any) -> int:
    """Return how often a tensor was changed in place, as far as torch counts that.

    The sign says whether it is trained.
    """
    try:
        return ~tensor._version if tensor.requires_grad else tensor._version  # type: ignore[no-any-return]
    except (RuntimeError, AttributeError):  # of inference mode
        return 0


class _Pickled(Contents):
    def __init__(self, data: bytes, parts: list[Held], *, plain: bool, looked: bool) -> None:
        self._data, self._parts, self.plain, self._looked = data, parts, plain, looked

    def is_mark_of(self, value: Any) -> bool:
        """Return whether it says no more than which object this is."""
        return not self._looked and bool(self._parts) and self._parts[0].holds(value)

    def same(self, value: Any) -> bool:
        now = _pickled(value)
        return now is not None and now._data == self._data and now._parts == self._parts


def _pickled(value: Any) -> _Pickled | None:
    """Return what a value is made of, None if it is too large or cannot be told."""
    if issubclass(type(value), type):
        found = _dumped(dict(_members(value))) if value.__module__ == "__main__" else None
        if found is not None:
            found.plain = True
        return found
    found = _dumped(value)
    if found is None or not found.is_mark_of(value):
        return found
    shown = _shown(value)
    found = _dumped(shown) if shown else None
    if found is not None:
        found.plain = False  # there is more to it
    return found


def _dumped(value: Any) -> _Pickled | None:
    file = _Limited()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except RAISED:  # too large or too deep, or a class of the user's, which may raise anything
        return None
    return _Pickled(file.getvalue(), pickler.parts, plain=pickler.plain, looked=pickler.looked)


def _shown(value: Any) -> Any:
    """Return what of a library's object can be compared: as much as may be set by hand."""
    if is_a(value, "torch.optim", "Optimizer"):
        groups = value.param_groups
        return [{name: group[name] for name in group if name != "params"} for group in groups]
    if is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series"):
        inside = getattr(value, "_mgr", None)
        # Whatever is put into a column becomes another array.
        return [*getattr(inside, "axes", ()), *getattr(inside, "arrays", ())]
    if isinstance(value, (*FIXED, FunctionType)):
        return None
    found = getattr(value, "__dict__", {})
    # What is private changes with use: a logger's cache.
    return {k: v for k, v in found.items() if k[:1] != "_" and is_open(type(v))} or None


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what cells put into a class: its functions and settings."""
    for name, value in vars(cls).items():
        own = not (name.startswith("__") and name.endswith("__"))
        if type(value) in (FunctionType, *WRAPS) or (own and is_open(type(value))):
            yield name, value


def _sum(array: Any) -> int:
    """Return a checksum of an array, of a large one's sample."""
    if array.nbytes > MOST_SUMMED:
        array = array.flat[:: array.size // SAMPLES + 1]
    return zlib.crc32(array.tobytes())


class _Limited(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise ValueError("too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles plain data and settings; all else becomes a mark, and is noted."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.plain = True
        self.looked = False
        """Whether something was found that can change in place."""
        self.parts: list[Held] = []
        self._met: set[int] = set()

    def reducer_override(self, obj: Any) -> Any:  # pickle's protocol
        kind = type(obj)
        if obj is _part:
            return NotImplemented
        if kind is FunctionType:
            return self._function(obj)
        if kind in WRAPS:
            return self._mark(obj, WRAPS[kind](obj))
        if isinstance(obj, FIXED):
            return self._mark(obj)
        if is_open(kind):
            self.looked = True
            return NotImplemented
        return self._opaque(obj)

    def _opaque(self, obj: Any) -> Any:
        """Mark what is not plain with what there is to tell whether it has changed."""
        self.plain = False
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(obj, torch.Tensor):
            self.looked = True
            return self._mark(obj, _count(obj))
        if numpy is not None and type(obj) is numpy.ndarray:
            self.looked = True
            return self._mark(obj, _sum(obj))
        return self._mark(obj)

    def _function(self, function: FunctionType) -> Any:
        if function.__module__ != "__main__" or id(function) in self._met:
            return self._mark(function)
        self._met.add(id(function))
        self.looked = True
        held = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
        return self._mark(
            function,
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            function.__dict__,
            held,
        )

    def _mark(self, obj: object, *more: object) -> Any:
        if len(self.parts) == MOST_PARTS:
            raise ValueError("too many")
        self.parts.append(Held(obj))
        return _part, (len(self.parts), *more)


def _part(*_: object) -> None:
    """Stand for an object in a pickle that is never read."""


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # not filled yet
        return True
    return False
