"""Versions of the notebook's names: a new one where a name was bound anew or its code changed."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.rank.names import held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


PLAIN = (int, float, complex, str, bytes, type(None), list, tuple, dict, set, frozenset)
"""What pickle copies without asking anybody."""


class _Version(NamedTuple):
    token: str
    value: Callable[[], object]
    code: tuple[CodeType, ...]


def _replaced() -> object:
    """Return what no name is bound to."""
    return _REPLACED


_REPLACED = object()


class Known:
    """Names that have been on their way to ranks. Kernel's main thread."""

    def __init__(self) -> None:
        self._versions: dict[str, _Version] = {}
        series = secrets.token_hex(3)
        self._tokens = (f"{series}.{n}" for n in itertools.count(1))

    def version(self, name: str, value: object) -> tuple[str, bool]:
        """Return the version of `name` with this value, and whether the notebook changed it."""
        known, code = self._versions.get(name), _code(value)
        changed = known is not None and (known.value() is not value or known.code != code)
        if known is None or changed:
            known = self._versions[name] = _Version(next(self._tokens), held(value), code)
        return known.token, changed

    def returned(self, name: str, value: object) -> None:
        """Note that a name's value has come from the ranks: they need not be sent it."""
        known = self._versions.get(name)
        token = next(self._tokens) if known is None else known.token
        self._versions[name] = _Version(token, held(value), _code(value))

    def kept(self, space: Mapping[str, Any]) -> dict[str, str]:
        """Return the versions of those names whose objects others may refer to."""
        return {
            name: version.token
            for name, version in self._versions.items()
            if version.value() is space.get(name)
            and not isinstance(space[name], (*PLAIN, FunctionType, ModuleType, type))
        }

    def forget(self, space: Mapping[str, Any]) -> None:
        """Let go of names that the notebook no longer has, and of values that it has replaced."""
        for name, version in list(self._versions.items()):
            if name not in space:
                del self._versions[name]
            elif version.value() is not space[name]:
                self._versions[name] = version._replace(value=_replaced)


def _code(value: object) -> tuple[CodeType, ...]:
    """Return the code of a function, or of a class's own methods, which may be edited in place."""
    if isinstance(value, FunctionType):
        return (value.__code__,)
    if not isinstance(value, type) or value.__module__ != "__main__":
        return ()
    return tuple(method.__code__ for method in methods(value))


def methods(cls: type) -> Iterator[FunctionType]:
    """Return the functions in a class's own body, properties and the like included."""
    for member in vars(cls).values():
        for function in (getattr(member, "__func__", None), getattr(member, "fget", None), member):
            if isinstance(function, FunctionType):
                yield function


def closed_over(function: FunctionType) -> Iterator[object]:
    """Return what a function holds of the functions it was defined in."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not filled yet
            yield cell.cell_contents
