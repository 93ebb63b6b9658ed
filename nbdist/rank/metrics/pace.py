"""What loops took, step by step and place by place. The thread that runs the loops.

Marks are made between steps, so that all numbers of a mark are of the same whole steps.
"""

from __future__ import annotations

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
"""Fewer tell more of chance than of a rank."""
LOOKS = 12
"""What was of late is made over so many looks: some six seconds."""
MOST_PLACES = 64
"""Loops of further places are not told of."""
EVEN = 0.1
"""Passes whose numbers of items differ by more are not of the same data."""
NUMBER = re.compile(r"\d+")


class Totals(NamedTuple):
    """What has been done since some beginning."""

    seconds: float = 0.0
    steps: int = 0
    samples: int = 0
    waited: float = 0.0
    """Seconds spent waiting for items."""
    others: float = 0.0
    """Seconds spent waiting for other ranks, as far as anybody told."""
    told: int = 0
    """How many such waits were told."""

    def plus(self, other: Totals) -> Totals:
        """Return both together."""
        return _totals(map(operator.add, self, other))

    def less(self, other: Totals) -> Totals:
        """Return what came since `other`."""
        return _totals(map(operator.sub, self, other))

    @property
    def own(self) -> float | None:
        """Seconds a step without the waits for other ranks; None if nobody told of any."""
        if not self.steps or not self.told:
            return None
        return max(0.0, self.seconds - self.others) / self.steps


_totals: Callable[[Iterable[float]], Totals] = Totals._make


def now(at: float, steps: int, samples: int, waited: float) -> Totals:
    """Return a reading of what only grows."""
    others = wait_time.so_far()
    return Totals(at, steps, samples, waited, others.seconds, others.times)


class Track:
    """What the loops of one place took together, however often they are begun."""

    def __init__(self, label: str, place: str = "", outer: str = "") -> None:
        self.label, self.inner, self.place, self.outer = label, True, place, outer
        self._totals = Totals()
        self._marks = [self._totals]
        self._every, self._since = 1, 0
        """A mark is kept for each so many."""
        self._looks: deque[Totals] = deque([self._totals], maxlen=LOOKS)
        """How it stood at the last ones."""
        self._first_pass: tuple[float, int] | None = None
        """Its seconds, with imports and first connections, and items."""
        self._passes, self._pass_seconds, self._uneven = 0, 0.0, False

    def passed(self, seconds: float, items: int) -> None:
        """Note that a loop has gone through all its items."""
        if self._first_pass is None:
            self._first_pass = seconds, items
            return
        few, many = sorted((items, self._first_pass[1]))
        self._uneven |= many > (1 + EVEN) * few
        self._passes += 1
        self._pass_seconds += seconds

    def add(self, came: Totals) -> None:
        """Take in some whole steps."""
        self._totals = self._totals.plus(came)
        self._since += 1
        if self._since < self._every:
            return
        self._since = 0
        self._marks.append(self._totals)
        if len(self._marks) > MOST_MARKS:
            self._marks, self._every = self._marks[::2], 2 * self._every

    def steady(self) -> Totals:
        """Return what came without the first half of the steps: imports, caches, buckets."""
        half = self._totals.steps / 2
        early = (mark for mark in self._marks if mark.steps <= half)
        # Of marks between two steps the first: what comes after it begins the next epoch.
        before = max(early, key=lambda mark: (mark.steps, -mark.seconds), default=Totals())
        return self._totals.less(before)

    def own_of_late(self) -> float | None:
        """Return the seconds a step of late without waits for others. The thread that looks.

        A wait is told a step later, so a few steps tell nothing: those of earlier loops count.
        """
        totals = self._totals
        late = totals.less(self._looks[0])
        if totals.steps > self._looks[-1].steps:
            self._looks.append(totals)
        return late.own if late.steps >= FEW_STEPS else None

    def pace(self) -> Pace | None:
        """Return it as it travels; None if there were no steps."""
        came = self.steady()
        if not came.steps:
            return None
        passes, seconds = self._passes, self._pass_seconds
        if not passes and self._first_pass is not None:
            passes, seconds = 1, self._first_pass[0]
        return Pace(
            self.label, came.steps, came.seconds, came.samples, came.waited,
            came.others if came.told else None, self.inner, passes, seconds / max(passes, 1),
            self._uneven, self.place, self.outer,
        )  # fmt: skip


_tracks: dict[str, Track] = {}


def track(label: str, frame: FrameType | None, within: list[Track]) -> Track:
    """Return the track of the loop that this frame runs, inside those of other loops.

    A loop whose label counts is the same; one in a function that is called from two lines is two,
    for it may train here and evaluate there.
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
    """Return where a frame is, as it is on another host, too."""
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame else ""


def paces() -> list[Pace]:
    """Return what the loops of each place took."""
    return [pace for each in list(_tracks.values()) if (pace := each.pace()) is not None]


def forget() -> None:
    """Begin anew."""
    _tracks.clear()
