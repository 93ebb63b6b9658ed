"""Tells what in a rank's variables may be this rank's own, so that ranks can be compared.

Besides its number these are random generators, seeds, the data sets of which each rank may have a
part, and plain numbers, texts and indices. Main thread, idle rank.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import random
import re
from typing import TYPE_CHECKING, Any

from nbdist.rank.looking.digests import Digester, TooMuch
from nbdist.rank.values import rank_marks
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.user_errors import RAISED
from nbdist.wire.inspection import Mark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbdist.rank.values.rank_marks import Found, Place

IS_SEED = re.compile(r"(.*_)?seed", re.IGNORECASE)
GENERATORS = (
    ("torch._C", "Generator"), ("numpy.random", "Generator"), ("numpy.random", "RandomState"),
)  # fmt: skip
DATA_SECONDS = 1.0
"""Time limit for the digests of data sets."""
ENDS = 16
"""How many items at each end of data are compared: another part of them begins with others."""


def marks(
    namespace: dict[str, Any], names: Iterable[str], brought: Iterable[str], place: Place
) -> dict[str, Mark]:
    """Return what may be this rank's own, by its path.

    Parameters
    ----------
    namespace, names
        The variables.
    brought
        Those that are as the notebook has them: they can differ only where they were put right.
    place
        This rank's.
    """
    digester, same = Digester(DATA_SECONDS), set(brought)
    told: dict[str, Mark] = {}
    for found in rank_marks.reached(namespace, names):
        if means := rank_marks.meaning(found):
            can = rank_marks.can_be_set(found, namespace, place.world_size)
            if rank_marks.variable(found.path) not in same or (can and "." in found.path):
                told[found.path] = Mark(means, str(int(found.value)), can)
        elif rank_marks.variable(found.path) not in same:
            means, value = _compared(found, digester)
            if value:
                told[found.path] = Mark(means, value)
    return told


def _compared(found: Found, digester: Digester) -> tuple[str, str]:
    """Return what kind of value it is of which ranks may have their own, and a digest."""
    value = found.value
    if type(value) is int and IS_SEED.fullmatch(found.name):
        return "seed", str(value)
    if found.path == found.name and _tells_apart(value):
        return "value", _digest_of(_ends(value), digester)
    try:
        if isinstance(value, random.Random) or any(is_a(value, *kind) for kind in GENERATORS):
            return "generator", _state_of(value)
        is_data = any(is_a(value, "torch.utils.data", kind) for kind in ("Dataset", "Sampler"))
        if is_data and not rank_marks.deals_out(type(value)):
            return "data", _data_of(value, digester)
    except RAISED:  # of the user's own class
        pass
    return "", ""


def _tells_apart(value: Any) -> bool:
    """Return whether a variable may say what is a rank's own: a number, a folder, indices.

    Not one of floats, which are mostly results.
    """
    if type(value) in (list, tuple):
        return bool(value) and all(type(each) in (int, str) for each in value[:ENDS])
    return type(value) in (int, str, range)


def _state_of(generator: Any) -> str:
    if is_a(generator, "torch._C", "Generator"):
        held = generator.get_state()  # on the CPU, and read without NumPy
        state = ctypes.string_at(held.data_ptr(), held.numel())
    else:
        state = pickle.dumps(generator)
    return hashlib.blake2b(state, digest_size=8).hexdigest()


def _data_of(data: Any, digester: Digester) -> str:
    """Return digests of a data set's or a sampler's attributes; '' if none can be compared."""
    told = {name: _digest_of(_ends(value), digester) for name, value in vars(data).items()}
    return repr(told) if any(told.values()) else ""


def _digest_of(value: Any, digester: Digester) -> str:
    try:
        return digester.digests(value)[0]
    except TooMuch:
        return ""


def _ends(value: Any) -> Any:
    """Return what tells parts of data apart, and is soon compared."""
    if type(value) is range:
        return value.start, value.stop, value.step
    arrays = is_a(value, "torch", "Tensor") or is_a(value, "numpy", "ndarray")
    if type(value) in (list, tuple) or (arrays and value.ndim):
        return len(value), value[:ENDS], value[-ENDS:]
    return value
