"""Random numbers of forked processes: each process has its own, as a new process has."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
from multiprocessing import process
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTROPY_BYTES = 16
"""What NumPy asks the system for, to seed a generator that was given no seed."""
_unseeded: list[Any] = []
"""Generators that preloaded modules have made without a seed: Python's, and NumPy's bit generators.
"""


def reseed() -> None:
    """Give a forked process random numbers of its own, as a new process has."""
    # `random` itself reseeds in every fork. Generators of GPUs do not exist yet: torch seeds them
    # at their first use.
    process.current_process().authkey = os.urandom(32)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()
    for generator in _unseeded:
        if isinstance(generator, random.Random):
            generator.seed()
        else:
            generator.state = type(generator)().state


@contextlib.contextmanager
def noting_unseeded() -> Iterator[None]:
    """Note the generators that the body makes without a seed, so that forks can reseed them.

    Any other generator begins with the same numbers in each process, as the body has asked for.
    """
    seed_plainly, urandom = random.Random.seed, getattr(random, "_urandom", os.urandom)
    made: dict[int, random.Random] = {}
    drawn: set[int] = set()

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        made.pop(id(self), None)
        if a is None:
            made[id(self)] = self
        seed_plainly(self, a, version)

    def draw(size: int) -> bytes:
        data = urandom(size)
        if size == ENTROPY_BYTES:
            drawn.add(int.from_bytes(data, "big"))
        return data

    def be(seed: Any, draw: Any) -> None:
        random.Random.seed = seed  # type: ignore[method-assign]
        random._urandom = draw  # type: ignore[attr-defined]  # noqa: SLF001

    be(seed, draw)
    try:
        yield
    finally:
        be(seed_plainly, urandom)
        _unseeded.extend([*made.values(), *_numpys(drawn)])


def _numpys(drawn: set[int]) -> list[Any]:
    """Return NumPy's bit generators whose seed is one of the numbers drawn from the system."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None or not drawn:
        return []
    kind = numpy.BitGenerator
    found = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    seeds = [getattr(getattr(each, "seed_seq", None), "entropy", None) for each in found]
    pairs = zip(found, seeds, strict=True)
    return [each for each, number in pairs if isinstance(number, int) and number in drawn]
