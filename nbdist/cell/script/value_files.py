"""Pickles the notebook's values into data files that a script loads without nbdist."""

from __future__ import annotations

import functools
import importlib
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as inside

from nbdist.cell.definitions.subclass_hooks import check_by_value
from nbdist.cell.script.tensor_memory import TensorMemory
from nbdist.rank.values import pickle_fixes
from nbdist.rank.values.annotations import names_mentioned
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.overlaps import Overlaps, as_usual, may_overlap, overlapping, root_of
from nbdist.rank.values.rank_marks import deals_out
from nbdist.rank.values.refusals import look_at, why_not
from nbdist.rank.values.user_errors import CannotTravel

PROTOCOL = 5
CACHE: Any = functools._lru_cache_wrapper  # noqa: SLF001
"""The type of a function with `lru_cache`, which pickle would look up by its name."""
INFO: Any = functools._CacheInfo  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
Stands = Callable[[Any], str]
"""Returns the name of a function or class with source in the script; '' without source."""


class _Main:
    """Unpickles as the script's own module, ``__main__``."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("__main__",)


_MAIN = _Main()


class _There:
    """Unpickles as the script's namespace."""

    def __reduce__(self) -> Any:
        return vars, (_MAIN,)


_THERE = _There()
SHARED_SAFELY = (
    bool, int, float, complex, str, bytes, type(None), type(...), tuple, type, ModuleType, CodeType,
    BuiltinFunctionType, _Main, _There,
)  # fmt: skip
"""Types whose objects may be duplicated in a script without a visible difference."""


class Packer:
    """Pickles values for a script, and finds the names they need there.

    Parameters
    ----------
    stands
        Finds the functions and classes with source in the script.
    space
        The notebook's namespace.
    """

    def __init__(self, stands: Stands, space: Mapping[str, Any]) -> None:
        self._stands, self.namespace = stands, space
        self.loaded: dict[int, str] = {}
        """For the id of a value that an earlier data file loads, its name."""
        self.by_value = False
        """Whether the last value tried contains functions or classes without source."""
        self.deals = False
        """Whether the last value tried contains what deals data out to ranks."""
        self.mentions: dict[str, None] = {}
        """Names that annotations of these mention."""
        self.gpu = False
        """Whether some tensors are on a GPU in the notebook."""
        self._dealing: dict[type, bool] = {}
        self._memory: Callable[[Any], Any] = as_usual
        """Reduces arrays that share memory."""

    def look(self, value: object, watched: Iterable[int] = ()) -> tuple[dict[str, None], set[int]]:
        """Try to pickle a value; return the names it needs, and the ids in `watched` it contains.

        Raises
        ------
        CannotTravel
            If the value cannot be pickled.
        """
        self.by_value, self.deals, self.mentions = False, False, {}
        needs: dict[str, None] = {}
        met: set[int] = set()
        watched = set(watched)
        is_storage = _storages()

        class Looking(_Pickler):
            def persistent_id(self, obj: Any) -> Any:
                if id(obj := _itself(obj)) in watched:
                    met.add(id(obj))
                return "storage" if is_storage and isinstance(obj, is_storage) else None

        try:
            Looking(io.BytesIO(), self, needs, buffer_callback=lambda _: False).dump(value)
        except Exception as err:  # a user's __reduce__ may raise anything
            raise CannotTravel(why_not(err)) from err
        return needs, met

    def refuses(self, value: object) -> str:
        """Return why a part of a value cannot be pickled alone; '' if it can be."""
        try:
            self.look(value)
        except CannotTravel as err:
            return str(err)
        return ""

    def held(self, value: object) -> dict[int, object]:
        """Return the objects in a value that other values may share, by id."""
        found: dict[int, object] = {}
        stands = self._stands

        class Looking(_Pickler):
            def persistent_id(self, obj: Any) -> Any:
                obj = _itself(obj)
                function = isinstance(obj, FunctionType)
                alone = function and (obj.__module__ != "__main__" or stands(obj))
                if not (isinstance(obj, SHARED_SAFELY) or alone):
                    found[id(obj)] = obj
                return "storage" if isinstance(obj, _storages()) else None

        Looking(io.BytesIO(), self, {}, buffer_callback=lambda _: False).dump(value)
        return found

    def dump(self, values: dict[str, Any]) -> tuple[str, bytes]:
        """Pickle values together; return the file's extension and content."""
        owner, file = self, io.BytesIO()
        overlaps = Overlaps()
        self._memory = overlapping(as_usual, overlaps, trial=True)
        storages = self._storages_in(values)
        in_tensors = TensorMemory(storages)
        self._memory = overlapping(in_tensors.reduce, overlaps, trial=False)
        if not storages:
            _Pickler(file, self, {}).dump(values)
            return "pkl", file.getvalue()
        import torch

        class Saving(_Pickler):
            def __init__(self, file: Any, protocol: int) -> None:
                assert protocol == PROTOCOL
                super().__init__(file, owner, {})

        ways: Any = SimpleNamespace(__name__="cloudpickle", Pickler=Saving)
        torch.save(values, file, pickle_module=ways, pickle_protocol=PROTOCOL)
        return "pt", file.getvalue()

    def _storages_in(self, values: dict[str, Any]) -> list[Any]:
        """Return the storages of tensors in values: only `torch.save` keeps shared ones shared."""
        found: list[Any] = []
        is_storage = _storages()

        class Looking(_Pickler):
            def persistent_id(self, obj: Any) -> Any:
                if not isinstance(obj, is_storage):
                    return None
                found.append(obj)
                return "storage"

        Looking(io.BytesIO(), self, {}, buffer_callback=lambda _: False).dump(values)
        return found

    # -- used by `_Pickler` ------------------------------------------------------------------

    def reduce(self, obj: Any, needs: dict[str, None]) -> Any:
        """Return how `obj` is pickled for the script; None if as cloudpickle does it."""
        if id(obj) in self.loaded:
            needs[self.loaded[id(obj)]] = None
            return getattr, (_MAIN, self.loaded[id(obj)])
        if isinstance(obj, (FunctionType, type)) or type(obj) is CACHE:
            name = self._stands(obj)
            if name:
                needs[name] = None
                # By name in `__main__`, which will be the script; a lambda's own name is another.
                return (getattr, (_MAIN, name)) if _is_lambda(obj) else NotImplemented
        if type(obj) is CACHE and obj.__module__ == "__main__":
            return CACHE, (obj.__wrapped__, *obj.cache_parameters().values(), INFO), vars(obj)
        if isinstance(obj, CellType):
            return _reduced_cell(obj)
        if may_overlap(type(obj)):
            reduced = self._memory(obj)
            return None if reduced is NotImplemented else reduced
        own: Any = self._look_at_gpus(obj) or look_at(type(obj), None)
        found = own is not None and not issubclass(type(obj), _storages()) and own(obj)
        return found if found and found is not NotImplemented else None

    def _look_at_gpus(self, obj: Any) -> Any:
        """Record a tensor on a GPU; return the reducer that maps a GPU to the rank's own."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return None
        if isinstance(obj, torch.Tensor):
            self.gpu |= obj.is_cuda
        on_gpu = isinstance(obj, torch.device) and obj.type == "cuda"
        return (lambda _: (torch.device, ("cuda",))) if on_gpu else None

    def note_kind(self, kind: type) -> None:
        """Record whether the objects of a type deal data out to ranks."""
        if kind not in self._dealing:
            self._dealing[kind] = deals_out(kind)
        self.deals |= self._dealing[kind]

    def note_value(self, obj: Any, needs: dict[str, None]) -> None:
        """Record a function or class that is pickled by value."""
        if isinstance(obj, type):
            check_by_value(obj)
        self.by_value = True
        self.mentions.update(names_mentioned(obj))
        name = obj.__name__
        if self.namespace.get(name) is obj:
            needs[name] = None


class _Pickler(cloudpickle.Pickler):
    """A pickler that puts functions without source into the script's namespace."""

    def __init__(
        self, file: Any, packer: Packer, needs: dict[str, None], buffer_callback: Any = None
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffer_callback)
        self._packer, self._needs = packer, needs

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild `obj` (see `pickle.Pickler.reducer_override`)."""
        self._packer.note_kind(type(obj))
        found = self._packer.reduce(obj, self._needs)
        if found is not None:
            return found
        # The script may run without nbdist.
        if isinstance(obj, FunctionType) and obj in pickle_fixes.MAKERS:
            return self._dynamic_function_reduce(obj)
        reduced = pickle_fixes.reduce(obj)
        if reduced is not NotImplemented:
            return reduced
        reduced = super().reducer_override(obj)
        if isinstance(reduced, tuple) and reduced[-1] is inside._class_setstate:  # noqa: SLF001
            self._packer.note_value(obj, self._needs)
            return pickle_fixes.whole_class(obj, reduced)
        return reduced

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(func)
        self._packer.note_value(func, self._needs)
        make, (code, space, name, defaults, _), (attributes, slots), *others = reduced
        # The cells themselves, not copies: another function may share them.
        slots["__closure__"] = None
        if func.__globals__ is self._packer.namespace:
            self._needs.update(dict.fromkeys(slots["__globals__"]))
            slots["__globals__"], space = {}, _THERE
        arguments = code, space, name, defaults, func.__closure__
        return make, arguments, (attributes, slots), *others


def _is_lambda(obj: Any) -> bool:
    return bool(obj.__qualname__ == "<lambda>")


def _reduced_cell(cell: CellType) -> Any:
    """Return how to rebuild a closure cell, whose content may refer to the cell."""
    make: Any = inside._make_empty_cell  # noqa: SLF001
    try:
        return make, (), (None, {"cell_contents": cell.cell_contents})
    except ValueError:  # an empty cell
        return make, ()


def _itself(obj: Any) -> Any:
    """Return the untyped storage inside a typed storage, an array's memory; others unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.ndarray):
        root = root_of(obj)
        return root.base.untyped_storage() if is_a(root.base, "torch", "Tensor") else root
    return obj._untyped_storage if type(obj).__name__ == "TypedStorage" else obj  # noqa: SLF001


def _storages() -> tuple[type, ...]:
    torch = sys.modules.get("torch")
    return (torch.UntypedStorage, torch.storage.TypedStorage) if torch else ()
