"""Whether a value is what it was: the same object, with the same content. Any process.

An object that is changed in place is the same object. What is small and plain is compared by its
pickle, which holds a mark for each part that is not; models and tensors by torch's own count of
changes in place.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import operator
import pathlib
import pickle
import random
import re
import sys
import uuid
import weakref
from abc import ABC, abstractmethod
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

MOST_BYTES = 1 << 16
"""Of a pickle that is compared with the last one: what that takes, each cell waits for."""
MOST_PARTS = 300
"""Objects in it that are not plain data."""
PLAIN = (int, float, complex, str, bytes, bool, type(None))
"""Cannot change in place."""
VALUES = (
    enum.Enum, pathlib.PurePath, dt.date, dt.time, dt.timedelta,
    dt.tzinfo, decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern, range, slice,
)  # fmt: skip
OPEN = frozenset({
    SimpleNamespace, Namespace, Counter, OrderedDict, defaultdict, deque, functools.partial,
    MethodType, random.Random,
})  # fmt: skip
"""Pickled by what they are made of, without code of the user's."""
GROWING = frozenset({list, dict, set, Counter, OrderedDict, defaultdict, deque})
FIXED = (type, BuiltinFunctionType, ModuleType, CodeType)
PYTHONS = 1 << 9
"""Flag of classes that Python code has made."""
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
    if torch is not None and isinstance(value, torch.nn.Module):
        return _Model(value)
    found = _pickled(value)
    if found is not None:
        return found
    return _Length(len(value)) if kind in GROWING else None


class State:
    """What makes an object into what another one is, without taking its place.

    Whoever else holds the object sees the change, as in the notebook.
    """

    def __init__(self, content: Any, kind: type | None = None) -> None:
        self._content, self._kind = content, kind

    @classmethod
    def of(cls, value: Any) -> State | None:
        """Return the state of a value, None if it can only be brought as a whole."""
        kind = type(value)
        if kind in GROWING or kind is bytearray:
            return cls(dict(value) if issubclass(kind, dict) else [*value])
        is_own = kind.__module__ == "__main__" or hasattr(kind, "__dataclass_fields__")
        settings = is_own or kind in (SimpleNamespace, Namespace)
        if settings and not isinstance(value, type) and _has_only_dict(value):
            return cls(dict(vars(value)), kind)
        return None

    def give_to(self, value: Any) -> None:
        """Change `value` in place."""
        if isinstance(value, (list, bytearray)):
            value[:] = self._content
            return
        if self._kind is not None and type(value) is not self._kind:
            value.__class__ = self._kind
        is_container = isinstance(value, (dict, set, deque))
        inside = value if is_container else vars(value)
        inside.clear()
        (inside.extend if isinstance(inside, deque) else inside.update)(self._content)


def _has_only_dict(value: Any) -> bool:
    """Return whether all that an object holds is in its `__dict__`."""
    if type(value) is SimpleNamespace:
        return True
    kinds = type(value).__mro__[:-1]
    return hasattr(value, "__dict__") and all(
        kind.__flags__ & PYTHONS and not vars(kind).get("__slots__") for kind in kinds
    )


class _Length(Contents):
    """Of what is too large to be compared as a whole."""

    def __init__(self, length: int) -> None:
        self._length = length

    def same(self, value: Any) -> bool:
        return len(value) == self._length


class _Model(Contents):
    """A model's parameters and buffers, and the mode its parts are in."""

    def __init__(self, model: Any) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._tensors = [(weakref.ref(one), _count(one)) for one in tensors]
        self._modules = [(weakref.ref(one), one.training) for one in model.modules()]

    def same(self, value: Any) -> bool:  # noqa: ARG002 - its parts are known
        return all(
            (part := ref()) is not None and _count(part) == count for ref, count in self._tensors
        ) and all(
            (part := ref()) is not None and part.training == mode for ref, mode in self._modules
        )


def _count(tensor: Any) -> int:
    """Return how often a tensor was changed in place, as far as torch counts that."""
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):  # of inference mode
        return 0


class _Pickled(Contents):
    def __init__(self, data: bytes, parts: list[Held], *, plain: bool) -> None:
        self._data, self._parts, self.plain = data, parts, plain

    def same(self, value: Any) -> bool:
        now = _pickled(value)
        return now is not None and now._data == self._data and now._parts == self._parts


def _pickled(value: Any) -> _Pickled | None:
    """Return what a value is made of, None if it is too large or cannot be told."""
    is_class = isinstance(value, type)
    if is_class:
        if value.__module__ != "__main__":
            return None
        value = dict(_members(value))
    file = _Limited()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except Exception:  # too large or too deep, or a class of the user's, which may raise anything
        return None
    if not pickler.looked and pickler.parts and pickler.parts[0].holds(value):
        return None
    return _Pickled(file.getvalue(), pickler.parts, plain=is_class or pickler.plain)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what cells put into a class: its functions and settings."""
    for name, value in vars(cls).items():
        own = not (name.startswith("__") and name.endswith("__"))
        if type(value) in (FunctionType, *WRAPS) or (own and _is_open(type(value))):
            yield name, value


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
        if _is_open(kind):
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
        if numpy is not None and type(obj) is numpy.ndarray and obj.nbytes < MOST_BYTES:
            self.looked = True
            return self._mark(obj, obj.tobytes())
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


_plain_reduce = operator.attrgetter("__reduce_ex__", "__reduce__")
_USUAL = _plain_reduce(object)
_STATE = getattr(object, "__getstate__", None)


def _is_open(kind: type) -> bool:
    """Return whether values of this type are pickled as what they are made of."""
    if kind in PLAIN or kind in GROWING or kind in OPEN or kind in (tuple, frozenset, bytearray):
        return True
    if issubclass(kind, VALUES):
        return True
    if kind.__module__ == "__main__" or hasattr(kind, "__dataclass_fields__"):
        return (
            _plain_reduce(kind) == _USUAL
            and getattr(kind, "__getstate__", None) is _STATE
            and not hasattr(kind, "__getnewargs__")
            and not hasattr(kind, "__getnewargs_ex__")
            and not _is_torchs(kind)
        )
    return _is_value_of_library(kind)


def _is_torchs(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, (torch.Tensor, torch.nn.Module))


def _is_value_of_library(kind: type) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.generic, numpy.dtype)):
        return True
    return torch is not None and kind in (torch.device, torch.dtype, torch.Size)
