"""Detects whether a value has changed in place since an earlier look. Kernel and ranks.

Small values are compared by `small_contents.py`, models and optimizers by `model_contents.py`; of
larger containers a sample is compared.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

from nbdist.rank.values.checksums import Checksums, memory_of
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.gradients import GradientMarks
from nbdist.rank.values.held import Contents
from nbdist.rank.values.kinds import GROWING, PLAIN
from nbdist.rank.values.model_contents import ModelContents, OptimizerContents
from nbdist.rank.values.own_modules import Read, is_replaced, module_of, with_imported
from nbdist.rank.values.small_contents import pickled
from nbdist.rank.values.user_errors import RAISED
from nbdist.rank.values.wrapped_functions import dispatches

SAMPLES = 1000
"""How many elements of a large container are compared."""


def contents(value: Any) -> Contents | None:
    """Return the present contents of a value; None if immutable or too slow to compare."""
    kind = type(value)
    if kind in PLAIN:
        return None
    if isinstance(value, (ModuleType, FunctionType, type)) and (module := module_of(value)):
        return _OfModule(value, module)
    if is_a(value, "torch.nn", "Module"):
        return ModelContents(value)
    if is_a(value, "torch.optim", "Optimizer"):
        return OptimizerContents(value)
    found: Contents | None = _Registered(value) if dispatches(value) else None
    if found is None and kind is not ModuleType:
        found = pickled(value)
        if found is not None and not found.plain and "torch" in sys.modules:
            with suppress(*RAISED):  # an error of the user's class
                found.marks = GradientMarks(value)
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
    return [len(value), *map(id, found), *(memory_of(each, sums) for each in found)]
