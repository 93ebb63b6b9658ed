"""`nbdist.progress`: how far a loop is, how fast it goes, and what it waits for.

The loop itself only counts, and now and then notes between two steps what they took (`pace`). The
agent's thread tells the hub of the loops that are open, twice a second, with rates that are made
from ends of steps (`rate`).
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from nbdist.rank.metrics import pace
from nbdist.rank.metrics.rate import Ends, Rates
from nbdist.wire.activity import Bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import SupportsFloat

Item = TypeVar("Item")
MOST_BARS = 16
"""Loops within each other that are told of."""
LONGEST_LABEL = 100
MOST_FEATURES = 8
"""A list of more arrays is hardly one of a batch's features."""
CHANNELS = (1, 3)
MOST = 2.0**62
"""Numbers beyond this are unknown ones."""
MARK_SECONDS = 0.02
"""Short steps are noted several at a time: a note takes some 5 us."""


class Loop:
    """One loop; the thread that runs it counts, the agent's looks."""

    def __init__(self, label: str, total: int | None, track: pace.Track, initial: int = 0) -> None:
        self.label, self.total, self.track = label, total, track
        self.done, self.samples = initial, 0
        self.waited = 0.0
        """Seconds it has waited for items; nothing where nobody counts them."""
        self.over = False
        self.began = self._at = time.monotonic()
        self._pass_began = None if initial else self.began
        self._pass_from = 0
        self.goes_on_from(initial)
        self.mark_at = self.began + MARK_SECONDS

    def goes_on_from(self, done: int) -> None:
        """Note that so much had been done before this loop, which is no work of its own."""
        self.done = done
        self._first = self._mark = pace.now(self.began, done, 0, 0.0)
        self._ends = Ends(self._first)

    def count(self, done: int, samples: int = 0) -> None:
        """Note that a step has ended, how far that is and what went into it."""
        self.done, self.samples = done, self.samples + samples
        self._at = time.monotonic()
        if self._at >= self.mark_at:
            self.mark(self._at)

    def mark(self, now: float) -> None:
        """Note, between two steps, what those took that are over by now."""
        before, self._mark = self._mark, pace.now(now, self.done, self.samples, self.waited)
        self.mark_at = now + MARK_SECONDS
        self.track.add(self._mark.less(before))
        self._ends.add(self._mark)

    def bar(self, *, final: bool = False) -> Bar:
        """Return how far it is; its rates are those of late, at its end those of all of it."""
        now = time.monotonic()
        ends, done = self._ends, self.done
        if final:
            whole = pace.Totals(self._ended if self.over else now, done, self.samples, self.waited)
            rates, still = Rates.between(self._first, whole), None
        else:
            rates, still = ends.rates(), None if self.over else ends.still(now)
        told = self.total is None or self.over or still is not None
        return Bar(
            self.label, done, self.total, *rates,
            self.track.steady().own if final else self.track.own_of_late(),
            over=self.over, still=still,
            left=None if told or self.total is None else ends.left(now, done, self.total),
        )  # fmt: skip

    def end(self, *, through: bool = False) -> None:
        """Note that it is over; it may have gone `through` items that nobody had counted."""
        self.over, self._ended = True, time.monotonic()
        if self._at > self._mark.seconds:  # steps that were counted after the last mark
            self.mark(self._at)
        self.end_pass(whole=through or self.done == self.total)

    def begin_pass(self) -> None:
        """Note that an epoch begins, in a loop that goes on after it."""
        self._pass_began, self._pass_from = time.monotonic(), self.done

    def end_pass(self, *, whole: bool) -> None:
        """Note that this epoch is over, if it has gone through all items."""
        if whole and self._pass_began is not None:
            self.track.passed(time.monotonic() - self._pass_began, self.done - self._pass_from)
        self._pass_began = None


_loops: list[Loop] = []
"""From the outermost inwards; one that is over stays until another takes its place."""


def open_loop(
    label: str, total: SupportsFloat | None, initial: int = 0, place: FrameType | None = None
) -> Loop:
    """Return a loop inside those that are open; whoever runs it counts, and calls its `end`.

    Parameters
    ----------
    label, total
        As for `progress`.
    initial
        Iterations that were done before.
    place
        Whose loop it is, which may be begun again and again; by default the caller's.
    """
    label = _told(label)
    depth = sum(not each.over for each in _loops)
    within = [each.track for each in _loops[:depth]]
    track = pace.track(label, place or sys._getframe().f_back, within)
    loop = Loop(label, _count("total", total), track, int(initial))
    _loops[depth:] = [loop]
    return loop


def progress(
    iterable: Iterable[Item], label: str = "", *, total: int | None = None,
    samples: int | None = None,
) -> Iterator[Item]:  # fmt: skip
    """Go through `iterable`; a bar below the cell shows how far it is while the cell runs.

    Loops may be nested, and any rank may show its own: the bar is rank zero's, the samples a second
    are all ranks' together, and the slowest rank is named. Outside a rank it only iterates.

    Parameters
    ----------
    iterable
        A loader, a range, anything.
    label
        What the bar is called.
    total
        How many items there are; by default ``len(iterable)``, where it has one.
    samples
        Samples in an item; by default the length of the first tensor or array found in it. A list
        of many, or of pictures, may be the samples themselves: then it is unknown.

    Yields
    ------
    Item
        The items of `iterable`.

    Raises
    ------
    TypeError
        If `total` or `samples` is no number; an infinite one is an unknown one.
    """
    if total is None:
        try:
            total = len(iterable)  # type: ignore[arg-type]  # that is what is tried
        except TypeError:
            total = None
    samples = _count("samples", samples)
    loop = open_loop(label, total, place=sys._getframe().f_back)
    clock = time.monotonic
    through = False
    try:
        asked = clock()
        items = iter(iterable)  # a loader starts its workers here
        loop.waited += clock() - asked
        while True:
            asked = clock()
            if asked >= loop.mark_at:
                loop.mark(asked)
            try:
                item = next(items)
            except StopIteration:
                loop.mark(asked)
                through = loop.done > 0
                return
            loop.waited += clock() - asked
            loop.samples += samples_in(item) if samples is None else samples
            yield item
            loop.done += 1
    finally:
        loop.end(through=through)


def _told(label: str) -> str:
    """Return a label as it can travel, and be shown."""
    return str(label)[:LONGEST_LABEL].encode(errors="replace").decode()


def _count(what: str, number: SupportsFloat | None) -> int | None:
    """Return a number of whatever kind as Python's own, which is what travels."""
    if number is None:
        return None
    try:
        found = float(number)
    except (TypeError, ValueError, OverflowError) as err:
        msg = f"nbdist.progress: {what} is {number!r}, which is no number"
        raise TypeError(msg) from err
    return math.ceil(found) if abs(found) < MOST else None


def samples_in(item: Any, depth: int = 4) -> int:
    """Return how many samples a batch holds: the length of the first array in it, 0 if unknown."""
    try:
        if isinstance(item, Mapping):
            inside = list(item.values())  # each has a name, so they are features
        elif isinstance(item, (list, tuple)):
            inside = [] if _are_pictures(item) else list(item)
        else:
            shape = getattr(item, "shape", None)
            return int(shape[0]) if shape else 0
        inside = inside[:MOST_FEATURES] if depth else []
        return next((found for each in inside if (found := samples_in(each, depth - 1))), 0)
    except Exception:  # another library's class, whose attributes may raise anything
        return 0


def _are_pictures(item: list[Any] | tuple[Any, ...]) -> bool:
    """Whether these arrays may be the samples, as pictures of several sizes are, not features."""
    shapes = [each.shape for each in item if hasattr(each, "shape")]
    if len(shapes) < max(2, len(item)):
        return False
    if len(shapes) > MOST_FEATURES:
        return True
    return all(len(shape) == 3 and shape[0] in CHANNELS for shape in shapes)  # noqa: PLR2004


def bars() -> list[Bar]:
    """Return how far this process's loops are, tqdm's too. The agent's thread."""
    ours = [loop.bar() for loop in _loops[:MOST_BARS]]
    return ours + _tqdm_bars()


def _tqdm_bars() -> list[Bar]:
    tqdm = sys.modules.get("tqdm.std")
    found = []
    try:
        for bar in sorted(getattr(tqdm, "tqdm")._instances, key=lambda bar: -bar.pos):  # noqa: B009
            rate = bar.format_dict["rate"]
            label = _told(bar.desc or "").rstrip(": ")
            rate = None if rate is None else float(rate)
            done, total = int(bar.n), _count("total", bar.total)
            left = max(0, total - done) / rate if rate and total is not None else None
            found.append(Bar(label, done, total, rate, tqdm=True, left=left))
    except (AttributeError, ArithmeticError, RuntimeError, TypeError, ValueError, KeyError):
        pass  # not there, or changed under our eyes: there is another look
    return found[:MOST_BARS]


def end() -> list[Bar]:
    """Return how far the loops have come in all, and forget them. Main thread."""
    ended = [loop.bar(final=True) for loop in _loops[:MOST_BARS]]
    _loops.clear()
    pace.forget()
    return ended


def _in_fork() -> None:
    """Show nothing of what a rank forks."""
    _loops.clear()
    pace.forget()


os.register_at_fork(after_in_child=_in_fork)
