"""Detects whether a value has changed in place since an earlier look. Kernel and ranks.

A small plain value is compared by its pickle, which has only a mark for each part that is not plain
data. Models and tensors are compared by torch's count of in-place changes; if it has not moved, by
checksums of their memory.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
import sys
import weakref
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from nbdist.rank.values.checksums import Checksums, count_of
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.gradients import Compared, GradientMarks, parameters_of
from nbdist.rank.values.kinds import GROWING, PLAIN, is_open
from nbdist.rank.values.own_modules import Read, is_replaced, module_of, with_imported
from nbdist.rank.values.user_errors import RAISED
from nbdist.rank.values.wrapped_functions import dispatches

MOST_BYTES = 1 << 16
"""The largest pickle that is compared, in bytes: every cell waits for the comparison."""
SAMPLES = 1000
"""How many elements of a large container are compared."""
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


class Held:
    """A reference to an object, weak if the object allows it."""

    __slots__ = ("_get", "_weak")

    def __init__(self, value: object) -> None:
        self._get: Callable[[], object]
        try:
            self._get, self._weak = weakref.ref(value), True
        except TypeError:
            self._get, self._weak = lambda: value, False

    def holds(self, value: object) -> bool:
        """Return whether `value` is this object; a dead reference does not equal None."""
        return self._get() is value and not (value is None and self._weak)

    def value(self) -> object:
        """Return the object; None if it is gone."""
        return self._get()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other.holds(self._get())

    __hash__ = None  # type: ignore[assignment]


class Contents(ABC):
    """The contents of a value at some time."""

    plain = False
    """Whether the value consists of plain data, settings and code only, so a copy is equivalent;
    of an optimizer, whether the rest of it is as it was."""

    @abstractmethod
    def same(self, value: Any) -> bool:
        """Return whether the same object still has these contents."""

    def gradients(self) -> Compared:
        """Return whether a model's or optimizer's parameters have other gradients or values."""
        return "same"

    def may_get(self, value: Any) -> bool:
        """Return whether the other end's new state would undo no change of the same object."""
        return self.same(value)

    def got(self, value: Any) -> Contents | None:
        """Return the contents of the same object after it got such a state."""
        return contents(value)


def contents(value: Any) -> Contents | None:
    """Return the present contents of a value; None if immutable or too slow to compare."""
    kind = type(value)
    if kind in PLAIN:
        return None
    if isinstance(value, (ModuleType, FunctionType, type)) and (module := module_of(value)):
        return _OfModule(value, module)
    if is_a(value, "torch.nn", "Module"):
        return _Model(value)
    if is_a(value, "torch.optim", "Optimizer"):
        return _Optimizer(value)
    found: Contents | None = _Registered(value) if dispatches(value) else None
    if found is None and kind is not ModuleType:
        found = _pickled(value)
    if found is not None:
        return found
    sampled = _Buffer if kind in (bytearray, array) else _Sample if kind in GROWING else None
    return None if sampled is None else sampled(value)


class _OfModule(Contents):
    """One of the user's own modules, or a function or class of it: whether it was reloaded."""

    plain = True

    def __init__(self, value: Any, module: ModuleType) -> None:
        self._code = getattr(value, "__code__", None)
        self._read = [(one, Read(one)) for one in with_imported(module).values()]

    def same(self, value: Any) -> bool:
        if is_replaced(value):
            return getattr(value, "__code__", None) is self._code
        return all(read.is_last(module) for module, read in self._read)


class _Registered(Contents):
    """The functions that are registered at a function of `functools.singledispatch`."""

    plain = True

    def __init__(self, function: Any) -> None:
        self._registry = dict(function.registry)

    def same(self, value: Any) -> bool:
        return dict(value.registry) == self._registry


class _Buffer(Contents):
    """A buffer that is too large to be pickled."""

    def __init__(self, value: Any) -> None:
        self._sum = len(value), Checksums().of_buffer(value)

    def same(self, value: Any) -> bool:
        return (len(value), Checksums().of_buffer(value)) == self._sum


class _Sample(Contents):
    """A sample of a container that is too large to be compared completely."""

    def __init__(self, value: Any) -> None:
        self._some = _some(value)

    def same(self, value: Any) -> bool:
        return _some(value) == self._some


def _some(value: Any) -> list[Any]:
    """Return a container's length, and the ids of some elements, which change with its order.

    Of those that are tensors or arrays, the values count, too.
    """
    if isinstance(value, list):
        found = value[:: len(value) // SAMPLES + 1]
    else:
        inside = value.values() if isinstance(value, dict) else value
        found = [*itertools.islice(inside, SAMPLES)]
    sums = Checksums()
    return [len(value), *map(id, found), *(_memory(each, sums) for each in found)]


class _Tensors:
    """The values of tensors at some time."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        sums = Checksums()
        self._known = [(weakref.ref(one), count_of(one), sums.of_tensor(one)) for one in tensors]

    def same(self) -> bool:
        tensors = []
        for ref, count, _ in self._known:
            tensor = ref()
            if tensor is None or count_of(tensor) != count:
                return False
            tensors.append(tensor)
        sums = Checksums()
        return all(
            sums.of_tensor(tensor) == known
            for tensor, (*_, known) in zip(tensors, self._known, strict=True)
        )


class _Model(Contents):
    """A model's submodules, tensors and plain attributes."""

    def __init__(self, model: Any) -> None:
        self._tensors = _Tensors([*model.parameters(), *model.buffers()])
        self._modules = [
            (weakref.ref(one), _parts_of(one), _plain_of(one)) for one in model.modules()
        ]
        self._gradients = GradientMarks(model)

    def same(self, value: Any) -> bool:  # noqa: ARG002 - its parts are known
        # While all these objects exist, no other object can have their ids.
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
        return self._tensors.same()

    def gradients(self) -> Compared:
        return self._gradients.compared()


class _Optimizer(Contents):
    """An optimizer's settings, its parameters and the tensors of its state."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._settings = _settings(optimizer)
        self._ids, tensors = _state_of(optimizer)
        self._tensors = _Tensors(tensors)
        self._gradients = GradientMarks(optimizer)

    @property
    def plain(self) -> bool:  # type: ignore[override]
        """Whether only settings may have changed since, which can be sent by themselves."""
        optimizer = self._optimizer()
        return optimizer is not None and self._same_state(optimizer) and self.gradients() == "same"

    def gradients(self) -> Compared:
        return self._gradients.compared()

    def same(self, value: Any) -> bool:
        return self.may_get(value) and self._same_state(value)

    def may_get(self, value: Any) -> bool:
        return _settings(value) == self._settings

    def got(self, value: Any) -> Contents:
        renewed = copy.copy(self)
        renewed._settings = _settings(value)
        return renewed

    def _same_state(self, value: Any) -> bool:
        return _state_of(value)[0] == self._ids and self._tensors.same()


def _settings(optimizer: Any) -> tuple[bytes, list[Held]] | None:
    groups = optimizer.param_groups
    found = _dumped([{name: group[name] for name in group if name != "params"} for group in groups])
    return None if found is None else found.told()


def _state_of(optimizer: Any) -> tuple[list[int], list[Any]]:
    """Return an optimizer's parameters and the tensors of its state, and the ids of all."""
    torch = sys.modules["torch"]
    inside = [
        one for state in optimizer.state.values() if type(state) is dict for one in state.values()
    ]
    tensors = parameters_of(optimizer)
    tensors += [one for one in inside if isinstance(one, torch.Tensor)]
    return [*map(id, tensors)], tensors


def _parts_of(module: Any) -> list[int]:
    parts = *module._modules.values(), *module._parameters.values(), *module._buffers.values()
    return list(map(id, parts))


def _plain_of(module: Any) -> tuple[Callable[[Any], Any], Any]:
    """Return a getter for a module's plain attributes, and their present values."""
    found = vars(module)
    names = [name for name in found if type(found[name]) in PLAIN]
    # A module that wraps another one, compiled or scripted, may have none of its own.
    get: Callable[[Any], Any] = itemgetter(*names) if names else lambda _: ()
    return get, get(found)


def _memory(value: Any, sums: Checksums) -> Any:
    """Return what tells whether a tensor, array or model has other values; None for others."""
    if is_a(value, "torch.nn", "Module"):
        return [_memory(one, sums) for one in (*value.parameters(), *value.buffers())]
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return count_of(value), sums.of_tensor(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return sums.of_array(value)
    return None


class Complete(Contents):
    """All that a small value holds; other objects in it are marked, each with its checksum."""

    def __init__(self, data: bytes, parts: list[Held], *, plain: bool, looked: bool) -> None:
        self._data, self._parts, self.plain, self._looked = data, parts, plain, looked

    def is_mark_of(self, value: Any) -> bool:
        """Return whether this pickle only identifies the object, without contents."""
        return not self._looked and bool(self._parts) and self._parts[0].holds(value)

    def told(self) -> tuple[bytes, list[Held]]:
        """Return all by which two pickles are compared."""
        return self._data, self._parts

    def same(self, value: Any) -> bool:
        """Return whether the same object still has these contents."""
        now = _pickled(value)
        return now is not None and now.told() == self.told()


def _pickled(value: Any) -> Complete | None:
    """Return the pickled contents of a value; None if too large or impossible."""
    if issubclass(type(value), type):
        found = _dumped(dict(members(value))) if value.__module__ == "__main__" else None
        if found is not None:
            found.plain = True
        return found
    found = _dumped(value)
    if found is None or not found.is_mark_of(value):
        return found
    inside = shown(value)
    found = _dumped(inside) if inside else None
    if found is not None:
        found.plain = False  # the object has more contents
    return found


def _dumped(value: Any) -> Complete | None:
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
        found = _memory(obj, self._sums)
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
