"""Waits that end, and limits that are later on a slow or busy machine.

A limit says that something hangs; it never says that something is fast. The seconds in the tests
are those of an idle machine of the year 2026; each is multiplied by how slow the machine is now.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

ROUNDS = 1_000_000
REFERENCE = 0.055
"""Seconds that so many rounds of a loop take where nothing else runs."""
KNOWN_SECONDS = 5.0
"""A measurement is good for so long."""
SHARE = max(1.0, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) / (os.cpu_count() or 1))
"""Workers on a core: one measurement may have found them idle, and most limits are set by one."""

_known = (-KNOWN_SECONDS, 1.0)


def slowness() -> float:
    """Return how much longer work takes here and now than on the machine of the limits.

    Both count: a slower processor, and processes that this one has to share it with.

    Returns
    -------
    float
        1.0 or more; at least the number of workers on a core.
    """
    began = time.perf_counter()
    total = 0
    for number in range(ROUNDS):
        total += number
    return max(SHARE, (time.perf_counter() - began) / REFERENCE)


def allowed(seconds: float) -> float:
    """Return a limit for those who wait by themselves, as `subprocess.run` does, in seconds."""
    global _known
    measured, factor = _known
    if time.monotonic() - measured > KNOWN_SECONDS:
        factor = slowness()
        _known = time.monotonic(), factor
    return seconds * factor


class Deadline:
    """The end of a wait; the machine is measured only when the plain limit is over.

    Parameters
    ----------
    seconds : float
        What is enough on the machine of the limits.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._factor = 1.0

    @property
    def took(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Whether the wait has lasted too long, also for a machine that is slow now."""
        if self.took <= self.seconds * self._factor:
            return False
        self._factor = max(self._factor, slowness())
        return self.took > self.seconds * self._factor


def until(
    condition: Callable[[], T | None], seconds: float = 20, told: Callable[[], object] = str
) -> T:
    """Ask again and again until a condition holds; return what it gave.

    Parameters
    ----------
    condition : callable
        Asked every 20 ms.
    seconds : float
        How long; see `Deadline`.
    told : callable, optional
        What the failure tells besides.
    """
    deadline = Deadline(seconds)
    while not (given := condition()):
        assert not deadline.over, f"waited {deadline.took:.1f} s in vain. {told()}"
        time.sleep(0.02)
    return given


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail where a block takes so long that something in it must have hung."""
    deadline = Deadline(seconds)
    yield
    assert not deadline.over, f"that took {deadline.took:.1f} s, not {seconds}"


if __name__ == "__main__":
    print(f"{slowness():.2f}")  # noqa: T201 - for the tests of the page
