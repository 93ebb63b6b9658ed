"""What a value holds, compared by a digest of its pickle. Kernel and ranks.

The pickle has only a mark for each part that is not plain data, with digests of what is compared of
it. It is never loaded. Of values that are too large for this a sample is pickled.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import pickle
import sys
from array import array
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.rank.values.checksums import Checksums, memory_of
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.held import Contents, Held
from nbdist.rank.values.kinds import GROWING, VALUES, is_open, is_own
from nbdist.rank.values.opened_objects import FIXED, WRAPS, attributes_of_tensor, members, opened
from nbdist.rank.values.pickles import namespace
from nbdist.rank.values.user_errors import RAISED

if TYPE_CHECKING:
    from nbdist.rank.values.gradients import Compared, GradientMarks

SMALL_BYTES = 1 << 16
"""The largest pickle of a value in which other values may refer to parts."""
MOST_BYTES = 1 << 20
"""The largest pickle that is compared, in bytes: every cell waits for the comparison."""
MOST_PARTS = 3000
"""The most objects in a value that are not plain data."""
SAMPLES = (1000, 30)
"""How many elements of each container are compared in a value that is larger."""
LONG = 1000
"""The length from which a text is compared by its hash in such a value."""
DEEPEST = 5
"""In how many libraries' objects another one may be, one in the other, to be looked into."""


class Apart(NamedTuple):
    """A container that is compared by itself: it may be brought under its own name."""

    container: Any


class _Any(Held):
    """Equals any other, so that only what is inside counts."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Any)

    __hash__ = None


class Recorded(Contents):
    """What a value holds; other objects in it are marked, each with its checksum."""

    def __init__(self, data: bytes, pickler: _Pickler, samples: int | None) -> None:
        self._digest, self._parts, self._inside = _digest(data), pickler.parts, pickler.inside
        self._looked, self._samples = pickler.looked, samples
        self.plain = pickler.plain and samples is None
        self.marks: GradientMarks | None = None
        """The gradients of the parameters in the value; None if it has none."""

    @property
    def is_sample(self) -> bool:
        """Whether only a sample is compared."""
        return self._samples is not None

    def gradients(self) -> Compared:
        """Return whether parameters in the value have other gradients or values."""
        return "same" if self.marks is None else self.marks.compared()

    def is_mark_of(self, value: Any) -> bool:
        """Return whether this pickle only identifies the object, without contents."""
        return not self._looked and bool(self._parts) and self._parts[0].holds(value)

    def told(self) -> tuple[bytes, list[Held], list[tuple[Held, bytes]]]:
        """Return all by which two pickles are compared."""
        return self._digest, self._parts, self._inside

    def same(self, value: Any) -> bool:
        """Return whether the same object still has these contents."""
        now = _dumped(*_in(value), self._samples)
        return now is not None and now.told() == self.told()

    def differing(self, value: Any) -> list[object]:
        """Return the objects that have changed: some inside, or the value itself."""
        return self.differs(_dumped(*_in(value), self._samples)) or [value]

    def differs(self, now: Recorded | None) -> list[object]:
        """Return the objects inside that alone differ; none if more does."""
        if now is None or now.told()[:2] != self.told()[:2]:
            return []
        pairs = zip(now._inside, self._inside, strict=False)
        return [held.value() for (held, digest), (_, was) in pairs if digest != was]


class Complete(Recorded):
    """All that a small value holds: the same path in it leads to the same object."""


def pickled(value: Any) -> Recorded | None:
    """Return the recorded contents of a value; None if there are none."""
    if issubclass(type(value), type) and value.__module__ != "__main__":
        return None
    found = dumped(*_in(value))
    if found is not None and issubclass(type(value), type):
        found.plain = True
    return None if found is None or found.is_mark_of(value) else found


def dumped(value: Any, met: Iterable[int] = ()) -> Recorded | None:
    """Return a value's pickle, or that of a sample if it is too large; None if there is none.

    Parameters
    ----------
    value
        The value.
    met
        The ids of objects that are only marked.
    """
    met = [*met]
    for samples in (None, *SAMPLES):
        found = _dumped(value, met, samples)
        if found is not None:
            return found
    return None


def _in(value: Any) -> tuple[Any, list[int]]:
    if issubclass(type(value), type):
        return (value.__bases__, dict(members(value))), [id(value)]
    return value, []


def _dumped(value: Any, met: Iterable[int], samples: int | None) -> Recorded | None:
    file = _Limited()
    pickler = (_Pickler if samples is None else _Sampler)(file, met, samples or 0)
    try:
        pickler.dump(value)
    except RAISED:  # too large, too deep, or an error of a user's class
        return None
    data = file.getvalue()
    small = samples is None and len(data) <= SMALL_BYTES
    return (Complete if small else Recorded)(data, pickler, samples)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class _Limited(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise ValueError("too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles plain data and settings; other objects become marks in `parts`."""

    def __init__(self, file: io.BytesIO, met: Iterable[int] = (), most: int = 0) -> None:
        super().__init__(file, protocol=5)
        self.plain = True
        self.looked = False
        """Whether the value contains something that can change in place."""
        self.parts: list[Held] = []
        self.inside: list[tuple[Held, bytes]] = []
        """Digests of what is in some of these."""
        self._most = most
        self._met = {*met}
        self._sums = Checksums()
        self._depth = 1 if self._met else 0

    def reducer_override(self, obj: Any) -> Any:  # pickle's protocol
        kind = type(obj)
        if obj is _part:
            return NotImplemented
        if kind is FunctionType:
            return self._function(obj)
        if kind in WRAPS:
            return self._mark(obj, WRAPS[kind](obj))
        if isinstance(obj, FIXED):
            return self._class(obj) if isinstance(obj, type) else self._mark(obj)
        how = self._apart if kind is Apart else self._open if is_open(kind) else self._opaque
        return how(obj)

    def _open(self, obj: Any) -> Any:
        """Keep an own object in a library's by itself: it may be brought under its own name."""
        self.looked = True
        if type(obj) is MethodType:  # which Python pickles with the name of its function
            return _part, (0, obj.__func__, obj.__self__)
        own = is_own(type(obj)) and not isinstance(obj, VALUES)
        if not own or not self._depth:
            return NotImplemented
        if id(obj) in self._met:
            return self._mark(obj)
        self._met.add(id(obj))
        kept = self._look_into(obj, obj.__reduce_ex__(4))
        return self._mark(obj) if kept else NotImplemented

    def _opaque(self, obj: Any) -> Any:
        """Mark an object that is not plain, with what is compared of it."""
        self.plain = False
        if id(obj) in self._met:
            return self._mark(obj)
        self._met.add(id(obj))
        memory = memory_of(obj, self._sums)
        is_model = is_a(obj, "torch.nn", "Module")
        found = opened(obj) if memory is None or is_model else None
        looked = found is not None and self._look_into(obj, found, is_model)
        self.looked = self.looked or looked or memory is not None
        return self._mark(obj, *([] if memory is None else [memory, attributes_of_tensor(obj)]))

    def _look_into(self, obj: Any, found: Any, is_model: bool = False) -> bool:
        """Keep a digest of what is compared of an object; return whether it is not too much."""
        count, file = (len(self.parts), len(self.inside)), _Limited()
        below = type(self)(file, (), self._most)
        below.parts, below.inside = self.parts, self.inside
        below._met, below._sums, below._depth = self._met, self._sums, self._depth + 1
        if is_model:
            modules = [*obj.modules()]
            self.parts += map(Held, modules)
            self._met.update(map(id, modules))
        try:
            if self._depth == DEEPEST:
                raise ValueError("too deep")
            below.dump(found)
        except RAISED:
            del self.parts[count[0] :], self.inside[count[1] :]
            return False
        self.inside.append((Held(obj), _digest(file.getvalue())))
        return True

    def _apart(self, apart: Apart) -> Any:
        if not self._look_into(apart, apart.container):
            return NotImplemented
        self.inside[-1] = _Any(apart.container), self.inside[-1][1]
        return _part, (0,)

    def _class(self, cls: type) -> Any:
        """Mark a class; one without a name of its own is compared here."""
        named = vars(sys.modules["__main__"]).get(cls.__name__) is cls
        if cls.__module__ != "__main__" or named or id(cls) in self._met:
            return self._mark(cls)
        self._met.add(id(cls))
        self.looked = True
        return self._mark(cls, cls.__bases__, dict(members(cls)))

    def _function(self, function: FunctionType) -> Any:
        # A function that `functools.wraps` a library's says that it is of its module.
        own = function.__module__ == "__main__" or function.__globals__ is namespace()
        if not own or id(function) in self._met:
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
        if len(self.parts) >= MOST_PARTS:
            raise ValueError("too many")
        self.parts.append(Held(obj))
        return _part, (len(self.parts), *more)


class _Sampler(_Pickler):
    """Pickles a sample of each large container."""

    def persistent_id(self, obj: Any) -> Any:  # pickle's protocol
        kind = type(obj)
        if kind is str or kind is bytes:
            return (len(obj), hash(obj)) if len(obj) > LONG else None
        if kind is bytearray or kind is array:
            return len(obj), self._sums.of_buffer(obj)
        if kind is list or kind is tuple:
            size = len(obj)
            return (size, [*obj[:: size // self._most + 1]]) if size > self._most else None
        if (kind in GROWING or kind is frozenset) and len(obj) > self._most:
            inside = obj.items() if isinstance(obj, dict) else obj
            return len(obj), [*itertools.islice(inside, self._most)]
        return None


def _part(*_: object) -> None:
    """Represent an object in a pickle, which is never loaded."""


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # an empty cell
        return True
    return False
