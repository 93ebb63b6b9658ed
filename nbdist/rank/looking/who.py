"""Lists a rank's variables for `%dist who`, and frees unused memory for `%dist free`."""

from __future__ import annotations

import ctypes
import gc
import re
from contextlib import suppress
from fnmatch import translate
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING

import msgspec
import psutil

from nbdist.rank.looking.bounded_look import OutOfTime, at_most, silence
from nbdist.rank.looking.digests import Digester, TooMuch
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.metrics import gpu
from nbdist.rank.values import ipython_history
from nbdist.rank.values.describe import describe
from nbdist.wire.inspection import Freed, Holdings, Memory, Seen, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from IPython.core.interactiveshell import InteractiveShell

LIMIT_SECONDS = 2.0
"""Time limit for the user's properties; a cell that arrives meanwhile waits this long at most."""
DIGEST_SECONDS = 1.0
NOT_VARIABLES = (ModuleType, FunctionType, BuiltinFunctionType, type)
"""Shown only if a pattern is given."""


class Who:
    """Describes the variables of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    def look(self, patterns: list[str], most: int) -> Holdings:
        """Return the variables with digests of their values. Main thread, idle rank."""
        chosen = self._chosen(patterns)
        names = sorted(chosen)
        seen: list[Seen] = []
        looked: set[str] = set()
        try:
            with silence(), at_most(LIMIT_SECONDS):
                digester = Digester(DIGEST_SECONDS)
                for name in names[:most]:
                    seen.append(describe(name, chosen[name], anything=True))
                    with suppress(TooMuch):
                        own, buffers = digester.digests(chosen[name])
                        seen[-1] = msgspec.structs.replace(seen[-1], digest=own, buffers=buffers)
                        looked.add(name)
        except OutOfTime:
            seen += [Seen(name, type(chosen[name]).__name__) for name in names[len(seen) : most]]
        return Holdings(State(), names, seen, [name for name in names[:most] if name not in looked])

    def glance(self, state: State, patterns: list[str], most: int) -> Holdings:
        """Return the variables without running their code or digests. Any thread."""
        chosen = self._chosen(patterns)
        names = sorted(chosen)
        seen = [describe(name, chosen[name], anything=False) for name in names[:most]]
        return Holdings(state, names, seen)

    def _chosen(self, patterns: Iterable[str]) -> dict[str, object]:
        fits = _fitting(list(patterns))
        hidden = self._shell.user_ns_hidden
        return {
            name: value
            for name, value in list(self._shell.user_ns.items())  # a cell may bind names meanwhile
            if isinstance(name, str) and (name not in hidden or name in OURS) and fits(name, value)
        }


def _fitting(patterns: list[str]) -> Callable[[str, object], bool]:
    """Return a function that selects names by patterns; by default all variables."""
    if not patterns:
        return lambda name, value: (
            not name.startswith("_")
            and name not in OURS
            and not any(kind in type(value).__mro__ for kind in NOT_VARIABLES)
        )
    wanted = [(re.compile(translate(text)), text.startswith("_")) for text in patterns]
    return lambda name, _: any(
        fits.match(name) and (private or not name.startswith("_")) for fits, private in wanted
    )


def memory() -> Memory:
    """Return how much memory this process uses."""
    full = psutil.Process().memory_full_info()
    own, cuda = gpu.number(), gpu.in_use()
    return Memory(
        full.rss,
        getattr(full, "uss", None),
        None if own is None else int(cuda.memory_allocated(own)),
        None if own is None else int(cuda.memory_reserved(own)),
    )


def free(shell: InteractiveShell, forget: Callable[[], None]) -> Freed:
    """Free all memory that no variable needs. Main thread, idle rank.

    Parameters
    ----------
    shell
        The rank's shell.
    forget
        Releases the objects that our own cells keep.
    """
    before = memory()
    forget()
    ipython_history.forget_error(shell)
    ipython_history.forget_values(shell)
    with silence():  # a user's `__del__` may print
        gc.collect()
    cuda = gpu.in_use()
    if cuda is not None:
        cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
    return Freed(State(), before, memory())
