"""Classifies types: immutable, growing, or compared and sent again by their contents."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import functools
import operator
import pathlib
import random
import re
import sys
import uuid
from argparse import Namespace
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from types import MemberDescriptorType, MethodType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from nbdist.rank.values.own_modules import module_of
from nbdist.rank.values.user_errors import RAISED

PLAIN = (int, float, complex, str, bytes, bool, type(None))
"""Types that cannot change in place."""
VALUES = (
    enum.Enum, pathlib.PurePath, dt.date, dt.time, dt.timedelta,
    dt.tzinfo, decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern, range, slice,
)  # fmt: skip
OPEN = frozenset({
    SimpleNamespace, Namespace, OrderedDict, defaultdict, Counter, deque, functools.partial,
    MethodType, random.Random, tuple, frozenset, bytearray, array,
})  # fmt: skip
"""Types that are pickled by their contents, without the user's code."""
PYTHONS = 1 << 9
"""The type flag of classes that were defined in Python."""
GROWING = frozenset({list, dict, set, OrderedDict, defaultdict, Counter, deque})


_of_own_modules = WeakKeyDictionary[type, bool]()
_plain_reduce = operator.attrgetter("__reduce_ex__", "__reduce__")
_USUAL = _plain_reduce(object)
_STATE = getattr(object, "__getstate__", None)


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of any object, the default if reading it raises."""
    try:
        return getattr(value, name, default)
    except RAISED:  # an error of the user's `__getattr__`
        return default


def is_open(kind: type) -> bool:
    """Return whether values of this type are pickled by their contents."""
    if kind in PLAIN or kind in GROWING or kind in OPEN or issubclass(kind, VALUES):
        return True
    if is_own(kind) or hasattr(kind, "__dataclass_fields__"):
        return (
            _plain_reduce(kind) == _USUAL
            and getattr(kind, "__getstate__", None) is _STATE
            and not hasattr(kind, "__getnewargs__")
            and not hasattr(kind, "__getnewargs_ex__")
            and not _is_torchs(kind)
        )
    return is_value_of_library(kind)


def is_own(kind: type) -> bool:
    """Return whether a class is of the notebook, or of one of the user's own modules."""
    if kind.__module__ == "__main__":
        return True
    if kind not in _of_own_modules:
        _of_own_modules[kind] = module_of(kind) is not None
    return _of_own_modules[kind]


def slots_of(kind: type, value: Any = None) -> list[tuple[str, Any]]:
    """Return the slots of a class; of an object only those that are set."""
    found = [
        pair for each in kind.__mro__ if each.__flags__ & PYTHONS for pair in vars(each).items()
    ]
    slots = [(name, slot) for name, slot in found if type(slot) is MemberDescriptorType]
    return [pair for pair in slots if value is None or _is_set(pair[1], value)]


def _is_set(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _is_torchs(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, (torch.Tensor, torch.nn.Module))


def is_value_of_library(kind: type) -> bool:
    """Return whether values of this type are numbers or settings of NumPy or torch."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.generic, numpy.dtype)):
        return True
    return torch is not None and kind in (torch.device, torch.dtype, torch.Size)
