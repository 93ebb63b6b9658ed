"""Waits with time limits, which are longer on a slow or busy machine.

A limit finds what hangs; it does not check that something is fast. The seconds in the tests hold
for an idle machine of the year 2026; they are multiplied by the slowness of the machine now.
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
"""Seconds that `ROUNDS` of a loop take on an idle machine."""
KNOWN_SECONDS = 5.0
"""How long a measurement is used."""
SHARE = max(1.0, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) / (os.cpu_count() or 1))
"""Workers on each core: a single measurement may happen while the other workers are idle."""

_known = (-KNOWN_SECONDS, 1.0)


def slowness() -> float:
    """Return how many times longer work takes now than on the machine of the limits.

    Both a slower processor and other processes on it count.

    Returns
    -------
    float
        1.0 or more; at least the number of workers on each core.
    """
    began = time.perf_counter()
    total = 0
    for number in range(ROUNDS):
        total += number
    return max(SHARE, (time.perf_counter() - began) / REFERENCE)


def allowed(seconds: float) -> float:
    """Return a limit in seconds for functions that wait by themselves, like `subprocess.run`."""
    global _known
    measured, factor = _known
    if time.monotonic() - measured > KNOWN_SECONDS:
        factor = slowness()
        _known = time.monotonic(), factor
    return seconds * factor


class Deadline:
    """The end of a wait; the machine is measured only when the limit without a factor is over.

    Parameters
    ----------
    seconds : float
        The limit on the machine of the limits.
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
        """Whether the wait has lasted too long, even for the present slowness of the machine."""
        if self.took <= self.seconds * self._factor:
            return False
        self._factor = max(self._factor, slowness())
        return self.took > self.seconds * self._factor


def until(
    condition: Callable[[], T | None], seconds: float = 20, told: Callable[[], object] = str
) -> T:
    """Wait until a condition holds; return the condition's value.

    Parameters
    ----------
    condition : callable
        Called every 20 ms.
    seconds : float
        The limit; see `Deadline`.
    told : callable, optional
        Returns an addition to the message of a failure.
    """
    deadline = Deadline(seconds)
    while not (given := condition()):
        assert not deadline.over, f"waited {deadline.took:.1f} s in vain. {told()}"
        time.sleep(0.02)
    return given


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if a block takes so long that something in it must have hung."""
    deadline = Deadline(seconds)
    yield
    assert not deadline.over, f"that took {deadline.took:.1f} s, not {seconds}"


if __name__ == "__main__":
    print(f"{slowness():.2f}")  # noqa: T201 - for the tests of the page
