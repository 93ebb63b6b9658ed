"""Pickles of what was defined in a notebook: by value, to live in the receiver's namespace.

cloudpickle gives a function copies of the globals it uses. Here it gets the namespace of the
receiving side itself, as if it had been defined there: it sees names that are bound again later.
"""

from __future__ import annotations

import functools
import io
import sys
import weakref
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as inside

from nbdist.rank.values import pickle_fixes

CELLS = "contents of its cells"

_sent: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes of this process: one that comes back stays as it is."""
_received: weakref.WeakSet[type] = weakref.WeakSet()


def namespace() -> dict[str, Any]:
    """Return where this process's cells bind their names."""
    from IPython.core.interactiveshell import InteractiveShell

    if InteractiveShell.initialized():
        space: dict[str, Any] = InteractiveShell.instance().user_ns
        return space
    import __main__

    return vars(__main__)


class _There:
    """Becomes the receiver's namespace."""

    def __reduce__(self) -> Any:
        return namespace, ()


_THERE = _There()


def _cached(wrapper: Any) -> Any:
    """Reduce a function of `functools.lru_cache` to what it wraps; what it knows stays here."""
    wrapped = getattr(wrapper, "__wrapped__", None)
    if getattr(wrapped, "__module__", "") != "__main__":
        return NotImplemented
    parameters = wrapper.cache_parameters()
    return cache_again, (wrapped, parameters["maxsize"], parameters["typed"])


def cache_again(wrapped: Any, maxsize: int | None, typed: bool) -> Any:
    """Return a function with a new cache."""
    return functools.lru_cache(maxsize, typed)(wrapped)


def _cached_property(found: Any) -> Any:
    """Leave out the lock that it has before Python 3.12."""
    state = {name: value for name, value in vars(found).items() if name not in ("func", "lock")}
    return functools.cached_property, (found.func,), state


def _code(code: CodeType) -> Any:
    """Keep the file, which cloudpickle 3.1.3 leaves out: by it tracebacks find the cell's lines."""
    make, arguments = inside._code_reduce(code)
    # A string of its own, or pickles would differ by which code shares it; so do cloudpickle's.
    return code_of, ("".join(code.co_filename), make, *arguments)


def code_of(file: str, make: Any, *arguments: Any) -> CodeType:
    """Put code together as cloudpickle does, and name the file that it comes from."""
    code: CodeType = make(*arguments)
    return code.replace(co_filename=file)


CACHING: dict[type, Any] = {
    functools._lru_cache_wrapper: _cached,
    functools.cached_property: _cached_property,
}
"""Types of what remembers results, with how they are reduced."""


class ByValue(cloudpickle.Pickler):
    """Pickles functions and classes of the notebook by value.

    Parameters
    ----------
    file
        Where to write.
    carry_globals
        Whether functions bring the globals they use, for a receiver that lacks them.
    buffer_callback
        As in `pickle.Pickler`.
    """

    def __init__(self, file: Any, *, carry_globals: bool, buffer_callback: Any = None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._space = namespace()
        self._carry_globals = carry_globals
        self.uses: dict[str, None] = {}
        """Names that what was pickled so far needs where it arrives."""
        self.files: dict[str, None] = {}
        """Where the code of its functions says it comes from."""
        self.codes: list[CodeType] = []
        """Of its functions."""

    def reducer_override(self, obj: Any) -> Any:
        """Say how to rebuild `obj` (pickle's protocol)."""
        if type(obj) in CACHING:
            return CACHING[type(obj)](obj)
        reduced = pickle_fixes.reduce(obj)
        if reduced is not NotImplemented:
            return reduced
        if isinstance(obj, CellType):
            return inside._make_empty_cell, ()
        if isinstance(obj, CodeType):
            return _code(obj)
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or reduced[-1] is not inside._class_setstate:
            return reduced
        if obj not in _received:
            _sent.add(obj)
        self._use(obj.__name__, obj)
        if "__slots__" in vars(obj) and not issubclass(obj, tuple):
            # cloudpickle sets them afterwards, when they make no slots any more.
            settings: dict[str, Any] = reduced[1][3]
            settings["__slots__"] = vars(obj)["__slots__"]
        return *reduced[:-1], set_class_state

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        make, (code, space, *rest, _), (attributes, slots), *_ = super()._dynamic_function_reduce(
            func
        )
        # cloudpickle would give each function cells of its own, and `nonlocal` would part them.
        slots |= {"__closure__": None, CELLS: [*map(_inside, func.__closure__ or ())]}
        if func.__globals__ is self._space:
            self.files[func.__code__.co_filename] = None
            self.codes.append(func.__code__)
            # Those, too, that there are not yet.
            self.uses.update(dict.fromkeys(global_names(func.__code__)))
            self._use(func.__name__, func)
            if not self._carry_globals:
                slots["__globals__"] = {}
            space = _THERE
        arguments = code, space, *rest, func.__closure__
        return make, arguments, (attributes, slots), None, None, set_function_state

    def _use(self, name: str, obj: object) -> None:
        """Note the name under which the notebook has a function or class."""
        if self._space.get(name) is obj:
            self.uses[name] = None


def _inside(cell: CellType) -> tuple[Any, ...]:
    """Return what is in a cell, as a tuple that is empty like it."""
    try:
        return (cell.cell_contents,)
    except ValueError:  # not filled yet
        return ()


def set_function_state(func: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Fill in a function; what its namespace has already stays."""
    _, slots = state
    for cell, content in zip(func.__closure__ or (), slots.pop(CELLS), strict=True):
        # One that a function here has filled is shared with that, and may have changed since.
        if content and not _inside(cell):
            (cell.cell_contents,) = content
    space = func.__globals__
    for name, value in slots["__globals__"].items():
        space.setdefault(name, value)
    builtins = space.get("__builtins__")
    slots["__globals__"] = {}
    inside._function_setstate(func, state)
    if builtins is not None:
        space["__builtins__"] = builtins


def set_class_state(cls: type, state: Any) -> None:
    """Fill in a class, unless it is this process's own, on its way back."""
    if cls not in _sent:
        _received.add(cls)
        inside._class_setstate(cls, state)


def global_names(code: CodeType) -> list[str]:
    """Return the globals that a function's code names, those of functions in it included."""
    return list(inside._extract_code_globals(code))


def submodules(code: CodeType, modules: list[ModuleType]) -> list[str]:
    """Return the imported submodules that code may use through the names of `modules`."""
    return [module.__name__ for module in inside._find_imported_submodules(code, modules)]


# -- processes started by a cell ---------------------------------------------------------------


def serve_workers() -> None:
    """Let processes that are spawned (not forked) by a cell have its functions and classes.

    Theirs is another `__main__`, which they cannot import: it was never a file.
    """
    vars_of: Any = ForkingPickler
    vars_of.reducer_override = _for_worker


def _for_worker(_pickler: ForkingPickler, obj: Any) -> Any:
    if (
        isinstance(obj, (FunctionType, type))
        and obj.__module__ == "__main__"
        and context.get_spawning_popen() is not None
    ):
        buffer = io.BytesIO()
        ByValue(buffer, carry_globals=True).dump(obj)
        return _in_worker, (buffer.getvalue(),)
    return NotImplemented


def _in_worker(data: bytes) -> Any:
    """Make a function or class that this process's `__main__` has from now on."""
    import __main__

    if isinstance(sys.stdout, io.TextIOWrapper):  # a file, to which it writes late, or word by word
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    made = cloudpickle.loads(data)
    if made.__qualname__ == made.__name__:
        # So that the worker can send its instances back by name.
        vars(__main__).setdefault(made.__name__, made)
    return made
