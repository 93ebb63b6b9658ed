"""Detects whether a value has changed in place since an earlier look. Kernel and ranks.

Models and optimizers are compared by `model_contents.py`, all others by `small_contents.py`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

from nbdist.rank.values.describe import is_a
from nbdist.rank.values.gradients import GradientMarks
from nbdist.rank.values.held import Contents
from nbdist.rank.values.kinds import PLAIN
from nbdist.rank.values.model_contents import ModelContents, OptimizerContents
from nbdist.rank.values.own_modules import Read, is_replaced, module_of, with_imported
from nbdist.rank.values.small_contents import Recorded, pickled
from nbdist.rank.values.user_errors import RAISED
from nbdist.rank.values.wrapped_functions import dispatches


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
    if dispatches(value):
        return _Registered(value)
    return None if kind is ModuleType else _with_gradients(pickled(value), value)


def _with_gradients(found: Recorded | None, value: Any) -> Recorded | None:
    if found is not None and not (found.plain or found.is_sample) and "torch" in sys.modules:
        with suppress(*RAISED):  # an error of the user's class
            found.marks = GradientMarks(value)
    return found


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
