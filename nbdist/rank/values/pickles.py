"""Pickles the notebook's functions and classes by value, into the receiver's namespace.

cloudpickle gives a function copies of the globals that it uses. Here a function gets the receiver's
namespace itself as its globals, as if it had been defined there, and so sees later bindings.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
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
from nbdist.rank.values.annotations import names_mentioned
from nbdist.rank.values.evaluated_texts import read_in_code
from nbdist.rank.values.made_classes import make_class, note_members, set_members

CELLS = "contents of its cells"

_sent: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes of this process that were sent: one that comes back is not changed."""
_received: weakref.WeakSet[type] = weakref.WeakSet()


def namespace() -> dict[str, Any]:
    """Return the namespace of this process's cells."""
    from IPython.core.interactiveshell import InteractiveShell

    if InteractiveShell.initialized():
        space: dict[str, Any] = InteractiveShell.instance().user_ns
        return space
    import __main__

    return vars(__main__)


class _There:
    """Unpickles as the receiver's namespace."""

    def __reduce__(self) -> Any:
        return namespace, ()


_THERE = _There()


def _cached(wrapper: Any) -> Any:
    """Reduce a function with `functools.lru_cache` to the function inside, without the cache."""
    wrapped = getattr(wrapper, "__wrapped__", None)
    if getattr(wrapped, "__module__", "") != "__main__":
        return NotImplemented
    parameters = wrapper.cache_parameters()
    return cache_again, (wrapped, parameters["maxsize"], parameters["typed"])


def cache_again(wrapped: Any, maxsize: int | None, typed: bool) -> Any:
    """Return a function with a new cache."""
    return functools.lru_cache(maxsize, typed)(wrapped)


def _cached_property(found: Any) -> Any:
    """Reduce a `cached_property` without its lock, which it has before Python 3.12."""
    state = {name: value for name, value in vars(found).items() if name not in ("func", "lock")}
    return functools.cached_property, (found.func,), state


def _code(code: CodeType) -> Any:
    """Reduce code with its file name, which tracebacks need and cloudpickle 3.1.3 leaves out."""
    make, arguments = inside._code_reduce(code)
    # A new string, as in cloudpickle: else the pickle depends on which code objects share it.
    return code_of, ("".join(code.co_filename), make, *arguments)


def code_of(file: str, make: Any, *arguments: Any) -> CodeType:
    """Rebuild code as cloudpickle does, and set its file name."""
    code: CodeType = make(*arguments)
    return code.replace(co_filename=file)


CACHING: dict[type, Any] = {
    functools._lru_cache_wrapper: _cached,
    functools.cached_property: _cached_property,
}
"""Types of caching wrappers, each with its reducer."""


class ByValue(cloudpickle.Pickler):
    """Pickles the notebook's functions and classes by value.

    Parameters
    ----------
    file
        The file to write to.
    carry_globals
        Whether functions take along the globals that they use, for a receiver that lacks them.
    buffer_callback
        As in `pickle.Pickler`.
    """

    to_notebook = False
    """Whether the receiver is the notebook, where no code has run for classes of the ranks."""

    def __init__(self, file: Any, *, carry_globals: bool, buffer_callback: Any = None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._space = namespace()
        self._carry_globals = carry_globals
        self.uses: dict[str, None] = {}
        """Names that the pickled values need at the receiver."""
        self.read: dict[str, None] = {}
        """Of these, the names that the pickled functions' code reads."""
        self.mentions: dict[str, None] = {}
        """Names that only annotations mention."""
        self.files: dict[str, None] = {}
        """The file names of the pickled functions' code."""
        self.codes: list[CodeType] = []
        """The pickled functions' code."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild `obj` (see `pickle.Pickler.reducer_override`)."""
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
        self.mentions.update(names_mentioned(obj))
        make, arguments, *state, _ = pickle_fixes.whole_class(obj, reduced)
        note_members(obj, state[0][1])
        return make_class, (make, self.to_notebook, *arguments), *state, set_class_state

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        make, (code, space, *rest, _), (attributes, slots), *_ = super()._dynamic_function_reduce(
            func
        )
        # cloudpickle would give each function its own cells, and break a shared `nonlocal`.
        slots |= {"__closure__": None, CELLS: [*map(_inside, func.__closure__ or ())]}
        if func.__globals__ is self._space:
            self.files[func.__code__.co_filename] = None
            self.codes.append(func.__code__)
            # Also globals that do not exist yet.
            self.read.update(dict.fromkeys(global_names(func.__code__)))
            self.uses.update(self.read)
            self._use(func.__name__, func)
            self.mentions.update(names_mentioned(func))
            if not self._carry_globals:
                slots["__globals__"] = {}
            space = _THERE
        arguments = code, space, *rest, func.__closure__
        return make, arguments, (attributes, slots), None, None, set_function_state

    def _use(self, name: str, obj: object) -> None:
        """Record the name of a function or class in the notebook."""
        if self._space.get(name) is obj:
            self.uses[name] = None


def _inside(cell: CellType) -> tuple[Any, ...]:
    """Return the content of a closure cell as a tuple, which is empty for an empty cell."""
    try:
        return (cell.cell_contents,)
    except ValueError:  # an empty cell
        return ()


def set_function_state(func: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Restore a function's state; names that the namespace already has stay."""
    _, slots = state
    for cell, content in zip(func.__closure__ or (), slots.pop(CELLS), strict=True):
        # A filled cell is shared with a function here, and may have changed since.
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
    """Restore a class's state, unless it is this process's own class coming back."""
    if cls not in _sent:
        _received.add(cls)
        inside._class_setstate(cls, state)
        set_members(cls, state[1])
        if type(state[0].get("__pydantic_validator__")).__name__ == "MockValSer":
            _await_names(cls)


def _await_names(cls: Any) -> None:
    """Let a pydantic class look again for the names that its annotations mention, when it is used.

    It had not found all of them, and has come with the sender's stand-ins for its validator.
    """
    with contextlib.suppress(Exception):  # a user's class may do anything
        if hasattr(cls, "model_rebuild"):
            cls.model_rebuild(force=True, raise_errors=False)
        else:
            pydantic: Any = importlib.import_module("pydantic.dataclasses")
            pydantic.rebuild_dataclass(cls, force=True, raise_errors=False)


def global_names(code: CodeType) -> list[str]:
    """Return the globals that a function's code and its inner functions use."""
    names = list(inside._extract_code_globals(code))
    return [*names, *read_in_code(code, names)]


def submodules(code: CodeType, modules: list[ModuleType]) -> list[str]:
    """Return the imported submodules that code may use as attributes of `modules`."""
    return [module.__name__ for module in inside._find_imported_submodules(code, modules)]


# -- processes started by a cell ---------------------------------------------------------------


def serve_workers() -> None:
    """Give processes that a cell spawns (not forks) the cell's functions and classes.

    A spawned process cannot import the `__main__` of a notebook, which is not a file.
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
    """Rebuild a function or class, and add it to this process's `__main__`."""
    import __main__

    if isinstance(sys.stdout, io.TextIOWrapper):  # a file, written to late or word by word
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    made = cloudpickle.loads(data)
    if made.__qualname__ == made.__name__:
        # The worker can then send instances back by the name of their class.
        vars(__main__).setdefault(made.__name__, made)
    return made
