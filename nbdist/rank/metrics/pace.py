"""Step times of loops, by their place in the code. The thread that runs the loops.

Readings ("marks") are taken between steps, so that all numbers in a mark belong to the same steps.
"""

from __future__ import annotations

import math
import operator
import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from nbdist.backends.groups import wait_time
from nbdist.backends.horovod import calls
from nbdist.wire.activity import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

MOST_MARKS = 64
FEW_STEPS = 10
"""With fewer steps, a mean says more about chance than about a rank."""
LOOKS = 12
"""Recent values cover this many looks, about six seconds."""
MOST_PLACES = 64
"""The most places with a track; loops at further places are not reported."""
EVEN = 0.1
"""Passes whose numbers of items differ by more than this share are over different data."""
NUMBER = re.compile(r"\d+")


class Totals(NamedTuple):
    """Sums since some beginning."""

    seconds: float = 0.0
    steps: int = 0
    samples: float = 0.0
    """NaN if a step had an unknown number."""
    waited: float = 0.0
    """Seconds spent waiting for items."""
    others: float = 0.0
    """Seconds spent waiting for other ranks, as far as these waits were measured."""
    told: int = 0
    """How many such waits were measured."""

    def plus(self, other: Totals) -> Totals:
        """Return the sum of both."""
        return _totals(map(operator.add, self, other))

    def less(self, other: Totals) -> Totals:
        """Return the difference to `other`."""
        return _totals(map(operator.sub, self, other))

    @property
    def own(self) -> float | None:
        """Seconds a step without waits for other ranks; None if no wait was measured."""
        if not self.steps or not self.told:
            return None
        return max(0.0, self.seconds - self.others) / self.steps


_totals: Callable[[Iterable[float]], Totals] = Totals._make


def now(at: float, steps: int, samples: float, waited: float) -> Totals:
    """Return a reading of all sums at this moment."""
    others = wait_time.so_far()
    return Totals(at, steps, samples, waited, others.seconds, others.times)


class Track:
    """The step times of all loops at one place in the code."""

    def __init__(self, label: str, place: str = "", outer: str = "") -> None:
        self.label, self.inner, self.place, self.outer = label, True, place, outer
        self._totals = Totals()
        self._marks = [self._totals]
        self._every, self._since = 1, 0
        """Of this many marks one is kept."""
        self._looks: deque[Totals] = deque([self._totals], maxlen=LOOKS)
        """The sums at the last looks."""
        self._first_pass: tuple[float, int] | None = None
        """The seconds of the first pass, with imports and first connections, and its items."""
        self._passes, self._pass_seconds, self._uneven = 0, 0.0, False

    def passed(self, seconds: float, items: int) -> None:
        """Record a complete pass of a loop over its items."""
        if self._first_pass is None:
            self._first_pass = seconds, items
            return
        few, many = sorted((items, self._first_pass[1]))
        self._uneven |= many > (1 + EVEN) * few
        self._passes += 1
        self._pass_seconds += seconds

    def add(self, came: Totals) -> None:
        """Add the sums of some complete steps."""
        self._totals = self._totals.plus(came)
        self._since += 1
        if self._since < self._every:
            return
        self._since = 0
        self._marks.append(self._totals)
        if len(self._marks) > MOST_MARKS:
            self._marks, self._every = self._marks[::2], 2 * self._every

    def steady(self) -> Totals:
        """Return the sums of the second half of the steps, without imports and warm-up."""
        half = self._totals.steps / 2
        early = (mark for mark in self._marks if mark.steps <= half)
        # Of several marks at the same step, the first: later ones include the start of an epoch.
        before = max(early, key=lambda mark: (mark.steps, -mark.seconds), default=Totals())
        return self._totals.less(before)

    def own_of_late(self) -> float | None:
        """Return the recent seconds a step without waits for others. The thread that looks.

        A wait is measured one step late, so steps of earlier loops at this place count, too.
        """
        totals = self._totals
        late = totals.less(self._looks[0])
        if totals.steps > self._looks[-1].steps:
            self._looks.append(totals)
        return late.own if late.steps >= FEW_STEPS else None

    def pace(self) -> Pace | None:
        """Return the message for the hub; None if there were no steps."""
        came = self.steady()
        if not came.steps:
            return None
        samples = None if math.isnan(came.samples) else int(came.samples)
        passes, seconds = self._passes, self._pass_seconds
        if not passes and self._first_pass is not None:
            passes, seconds = 1, self._first_pass[0]
        return Pace(
            self.label, came.steps, came.seconds, samples, came.waited,
            came.others if came.told else None, self.inner, passes, seconds / max(passes, 1),
            self._uneven, self.place, self.outer,
        )  # fmt: skip


_tracks: dict[str, Track] = {}


def track(label: str, frame: FrameType | None, within: list[Track]) -> Track:
    """Return the track of the loop in this frame, which is inside other loops.

    Loops whose labels differ only in numbers share a track. A loop in a function that is called
    from two lines has two tracks, as it may train in one call and evaluate in the other.
    """
    calls.time_waits()
    places = [_place(frame), _place(frame.f_back)] if frame is not None else []
    place = f"{' from '.join(places)}, depth {len(within)}: {NUMBER.sub('0', label)}"
    if place not in _tracks and len(_tracks) >= MOST_PLACES:
        return Track(label)
    found = _tracks.setdefault(place, Track(label, place, within[-1].place if within else ""))
    if within:
        within[-1].inner = False
    return found


def _place(frame: FrameType | None) -> str:
    """Return a frame's file and line, without the folder, which may differ by host."""
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame else ""


def paces() -> list[Pace]:
    """Return the step times of all places."""
    return [pace for each in list(_tracks.values()) if (pace := each.pace()) is not None]


def forget() -> None:
    """Forget all tracks."""
    _tracks.clear()
