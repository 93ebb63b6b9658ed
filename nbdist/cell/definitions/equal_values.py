"""Compares two values strictly: same type and same content, not only ``==``."""

from __future__ import annotations

import math
import re
import struct
import sys
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from types import FunctionType, GenericAlias, UnionType
from typing import Any

ATOMS = (bool, int, str, bytes, type(None), type(...), complex, float)
CONTAINERS = (list, tuple, dict, set, frozenset)
COMPARED = (date, time, timedelta, Decimal, Fraction, PurePath, re.Pattern, range, slice)
"""Immutable types whose `==` and `repr` decide."""
TYPING = frozenset({"typing", "typing_extensions"})
MOST = 10_000
"""The most elements of a container that is examined."""


def same(then: Any, now: Any) -> bool:
    """Return whether two values are indistinguishable, except by their containers' identity."""
    if then is now:
        return True
    kind = type(then)
    if kind is not type(now):
        return bool(_is_typing(then) and then == now)
    if kind is float:
        both_nan = math.isnan(then) and math.isnan(now)
        return both_nan or struct.pack("d", then) == struct.pack("d", now)
    if kind is complex:
        return same((then.real, then.imag), (now.real, now.imag))
    try:
        return _same_parts(then, now)
    except RecursionError:
        return False


def _same_parts(then: Any, now: Any) -> bool:
    if isinstance(then, CONTAINERS):
        return type(then) in CONTAINERS and len(then) == len(now) and _same_inside(then, now)
    if isinstance(then, FunctionType):
        return (
            then.__code__ == now.__code__
            and then.__closure__ is now.__closure__ is None
            and same(then.__defaults__, now.__defaults__)
            and same(then.__kwdefaults__, now.__kwdefaults__)
            and then.__dict__ == now.__dict__ == {}
        )
    if type(then) is partial:
        parts = ((each.func, each.args, each.keywords, vars(each)) for each in (then, now))
        return same(*parts)
    if is_numbers(then):
        return bool(then.dtype == now.dtype and then.tobytes() == now.tobytes())
    # The repr, too: equal Decimals, for example, may have different digits.
    return bool(is_value(then) and then == now and repr(then) == repr(now))


def _same_inside(then: Any, now: Any) -> bool:
    if isinstance(then, dict):
        return same([*then.items()], [*now.items()])
    if isinstance(then, (set, frozenset)):
        # The repr, too: equal elements may have different types.
        return bool(then == now) and sorted(map(repr, then)) == sorted(map(repr, now))
    return all(same(*pair) for pair in zip(then, now, strict=True))


def is_value(value: object) -> bool:
    """Return whether a value is immutable and independent of the notebook's code."""
    kind = type(value)
    return (
        kind in ATOMS
        or (isinstance(value, COMPARED) and kind.__module__ != "__main__")
        or is_numbers(value)
        or kind is type(sys.version_info)
        or (kind.__module__ == "torch" and kind.__name__ in ("device", "dtype", "Size"))
        or _is_typing(value)
    )


def is_numbers(value: object) -> bool:
    """Return whether a value is a NumPy scalar."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind != "O"


def is_plain(value: Any, depth: int = 6) -> bool:
    """Return whether operators on a value have the same results in every process.

    Not for a set: its elements have another order in each process.
    """
    kind = type(value)
    if kind in (list, tuple, dict):
        inner = [*value, *value.values()] if kind is dict else value
        return depth > 0 and len(value) <= MOST and all(is_plain(each, depth - 1) for each in inner)
    return is_value(value) or isinstance(value, type)


def _is_typing(value: object) -> bool:
    kind = type(value)
    return kind.__module__ in TYPING or kind in (GenericAlias, UnionType)


def mutable(value: Any) -> list[object]:
    """Return the lists, dicts and sets inside a value, each as often as it occurs."""
    if not isinstance(value, CONTAINERS):
        return []
    inner = [*value, *value.values()] if isinstance(value, dict) else list(value)
    own = [value] if isinstance(value, (list, dict, set)) else []
    return own + [found for each in inner for found in mutable(each)]
