"""Creates classes that come from another process: each once, and without what its definition ran.

To create a class runs code: its metaclass, and `__init_subclass__` of its bases. In the notebook
that code has run already. What it has changed, such as a list of all subclasses, travels by itself.
"""

from __future__ import annotations

import types
from contextlib import ExitStack, contextmanager, suppress
from enum import EnumMeta
from typing import TYPE_CHECKING, Any

from cloudpickle import cloudpickle as inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOOK = "__init_subclass__"
MEMBERS = "attributes of its members"
BASES = "its bases, if they were set again"
OF_ENUM = ("_value_", "_name_", "__objclass__", "_sort_order_")
"""What Python gives to each member of an enum."""


def make_class(make: Callable[..., Any], runs_code: bool, *arguments: Any) -> Any:
    """Return this process's class of that id, or create it.

    Parameters
    ----------
    make
        cloudpickle's function that creates such a class.
    runs_code
        Whether to run the notebook's code that the class's definition runs.
    arguments
        The arguments of `make`.
    """
    known = inside._DYNAMIC_CLASS_TRACKER_BY_ID.get(arguments[-2])
    if known is not None:
        return known
    if make is not inside._make_skeleton_class:  # an enum
        return make(*arguments)
    if runs_code:
        with suppress(TypeError):  # that code takes arguments, which a class does not keep
            return make(*arguments)
    kind, name, bases, settings, tracker, _ = arguments
    with _without_hooks(types.resolve_bases(bases)):
        if not _is_own(kind):
            return make(*arguments)
        made = _without_metaclass(kind, name, bases, settings)
    return inside._lookup_class_or_track(tracker, made)


def note_members(cls: type, state: dict[str, Any]) -> None:
    """Add to a class's state its bases, and what an enum's `__init__` has given to its members.

    cloudpickle makes members before the class has its methods.
    """
    state[BASES] = cls.__bases__
    if isinstance(cls, EnumMeta):
        state[MEMBERS] = {
            name: {key: value for key, value in vars(member).items() if key not in OF_ENUM}
            for name, member in dict[str, Any](cls.__members__).items()
        }


def set_members(cls: Any, state: dict[str, Any]) -> None:
    """Give a class the bases, and an enum's members the attributes, that it has there."""
    if state[BASES] != cls.__bases__:
        with suppress(TypeError):  # of another layout
            cls.__bases__ = state[BASES]
    for name, own in state.get(MEMBERS, {}).items():
        vars(cls[name]).update(own)


def _is_own(cls: type) -> bool:
    """Return whether cells have defined a class."""
    return cls.__module__ == "__main__"


def _without_metaclass(kind: Any, name: str, bases: tuple[Any, ...], settings: Any) -> type:
    """Create a class by the part of its metaclass that comes from a library, or from Python."""
    resolved = types.resolve_bases(bases)
    space = dict(settings) if resolved is bases else {**settings, "__orig_bases__": bases}
    library: Any = next(base for base in kind.__mro__ if not _is_own(base))
    made: type = library.__new__(kind, name, resolved, space)
    library.__init__(made, name, resolved, space)
    return made


@contextmanager
def _without_hooks(bases: tuple[type, ...]) -> Iterator[None]:
    """Let the notebook's `__init_subclass__` in these classes only call that of the next class."""
    every = {base for one in bases for base in one.__mro__}
    with ExitStack() as stack:
        for base in every:
            if _is_own(base) and HOOK in vars(base):
                stack.callback(type.__setattr__, base, HOOK, vars(base)[HOOK])
                type.__setattr__(base, HOOK, classmethod(_next_after(base)))
        yield


def _next_after(base: Any) -> Callable[..., None]:
    def hook(cls: Any, **settings: Any) -> None:
        super(base, cls).__init_subclass__(**settings)

    return hook
