"""What a small value holds, compared by its pickle. Kernel and ranks.

The pickle has only a mark for each part that is not plain data. It is never loaded.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.rank.values.checksums import Checksums, memory_of
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.held import Contents, Held
from nbdist.rank.values.kinds import is_open
from nbdist.rank.values.user_errors import RAISED

if TYPE_CHECKING:
    from nbdist.rank.values.gradients import Compared, GradientMarks

MOST_BYTES = 1 << 16
"""The largest pickle that is compared, in bytes: every cell waits for the comparison."""
MOST_PARTS = 300
"""The most objects in a value that are not plain data."""
FIXED = (type, BuiltinFunctionType, ModuleType, CodeType)
WRAPS: dict[type, Callable[[Any], Any]] = {
    functools._lru_cache_wrapper: lambda found: getattr(found, "__wrapped__", None),
    property: lambda found: (found.fget, found.fset, found.fdel),
    staticmethod: lambda found: found.__func__,
    classmethod: lambda found: found.__func__,
}
"""Types that wrap functions, each with how to get the functions."""


class Complete(Contents):
    """All that a small value holds; other objects in it are marked, each with its checksum."""

    def __init__(self, data: bytes, parts: list[Held], *, plain: bool, looked: bool) -> None:
        self._data, self._parts, self.plain, self._looked = data, parts, plain, looked
        self.marks: GradientMarks | None = None
        """The gradients of the parameters in the value; None if it has none."""

    def gradients(self) -> Compared:
        """Return whether parameters in the value have other gradients or values."""
        return "same" if self.marks is None else self.marks.compared()

    def is_mark_of(self, value: Any) -> bool:
        """Return whether this pickle only identifies the object, without contents."""
        return not self._looked and bool(self._parts) and self._parts[0].holds(value)

    def told(self) -> tuple[bytes, list[Held]]:
        """Return all by which two pickles are compared."""
        return self._data, self._parts

    def same(self, value: Any) -> bool:
        """Return whether the same object still has these contents."""
        now = pickled(value)
        return now is not None and now.told() == self.told()


def pickled(value: Any) -> Complete | None:
    """Return the pickled contents of a value; None if too large or impossible."""
    if issubclass(type(value), type):
        found = dumped(dict(members(value))) if value.__module__ == "__main__" else None
        if found is not None:
            found.plain = True
        return found
    found = dumped(value)
    if found is None or not found.is_mark_of(value):
        return found
    inside = shown(value)
    found = dumped(inside) if inside else None
    if found is not None:
        found.plain = False  # the object has more contents
    return found


def dumped(value: Any) -> Complete | None:
    """Return a value's pickle; None if it is too large, or if there is none."""
    file = _Limited()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except RAISED:  # too large, too deep, or an error of a user's class
        return None
    return Complete(file.getvalue(), pickler.parts, plain=pickler.plain, looked=pickler.looked)


def shown(value: Any) -> Any:
    """Return the attributes of a library's object that a user may set, to be compared."""
    if is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series"):
        inside = getattr(value, "_mgr", None)
        # A change of a column makes a new array.
        return [*getattr(inside, "axes", ()), *getattr(inside, "arrays", ())]
    if isinstance(value, (*FIXED, FunctionType)):
        return None
    found = getattr(value, "__dict__", {})
    # Not private attributes, which change with use, such as a logger's cache.
    return {k: v for k, v in found.items() if k[:1] != "_" and is_open(type(v))} or None


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions and settings in a class that a cell defined."""
    for name, value in vars(cls).items():
        own = not (name.startswith("__") and name.endswith("__"))
        if type(value) in (FunctionType, *WRAPS) or (own and is_open(type(value))):
            yield name, value


class _Limited(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise ValueError("too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles plain data and settings; other objects become marks in `parts`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.plain = True
        self.looked = False
        """Whether the value contains something that can change in place."""
        self.parts: list[Held] = []
        self._met: set[int] = set()
        self._sums = Checksums()

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
        """Mark an object that is not plain, with a change count or checksum if there is one."""
        self.plain = False
        found = memory_of(obj, self._sums)
        if found is None:
            return self._mark(obj)
        self.looked = True
        return self._mark(obj, found)

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
    """Represent an object in a pickle, which is never loaded."""


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # an empty cell
        return True
    return False
