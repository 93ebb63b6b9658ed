"""`nbdist.progress`: shows how far a loop is, its rate, and how long it waits for data.

The loop itself only counts steps, and sometimes records their times between two steps (`pace`).
Twice a second the agent's thread reports the open loops to the hub, with rates computed from the
ends of steps (`rate`).
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from nbdist.rank.metrics import pace
from nbdist.rank.metrics.batch_sizes import UNKNOWN, Pass
from nbdist.rank.metrics.rate import Ends, Rates
from nbdist.wire.activity import Bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import SupportsFloat

Item = TypeVar("Item")
MOST_BARS = 16
"""The most nested loops that are reported."""
LONGEST_LABEL = 100
MOST = 2.0**62
"""Larger numbers count as unknown."""
MARK_SECONDS = 0.02
"""The least time between two marks: a mark takes 5 us, so short steps share one."""


class Loop:
    """A loop: the thread that runs it counts steps, the agent's thread reads."""

    def __init__(self, label: str, total: int | None, track: pace.Track, initial: int = 0) -> None:
        self.label, self.total, self.track = label, total, track
        self.done, self.samples = initial, 0.0
        self.waited = 0.0
        """Seconds the loop has waited for items; 0 if they are not measured."""
        self.over = False
        self.began = self._at = time.monotonic()
        self._pass_began = None if initial else self.began
        self._pass_from = 0
        self.goes_on_from(initial)
        self.mark_at = self.began + MARK_SECONDS

    def goes_on_from(self, done: int) -> None:
        """Set the number of steps done before this loop, which are not its own work."""
        self.done = done
        self._first = self._mark = pace.now(self.began, done, 0, 0.0)
        self._ends = Ends(self._first)

    def count(self, done: int, samples: float = UNKNOWN) -> None:
        """Record the end of a step: the steps done so far, and the samples in it, if known."""
        self.done, self.samples = done, self.samples + samples
        self._at = time.monotonic()
        if self._at >= self.mark_at:
            self.mark(self._at)

    def mark(self, now: float) -> None:
        """Record, between two steps, the times of the steps that have ended."""
        before, self._mark = self._mark, pace.now(now, self.done, self.samples, self.waited)
        self.mark_at = now + MARK_SECONDS
        self.track.add(self._mark.less(before))
        self._ends.add(self._mark)

    def bar(self, *, final: bool = False) -> Bar:
        """Return the bar, with recent rates or, at the end, those of the whole loop."""
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
        """Record the end of the loop; `through` if it has gone through all items."""
        self.over, self._ended = True, time.monotonic()
        if self._at > self._mark.seconds:  # steps that were counted after the last mark
            self.mark(self._at)
        self.end_pass(whole=through or self.done == self.total)

    def begin_pass(self) -> None:
        """Record the start of an epoch, in a loop over several epochs."""
        self._pass_began, self._pass_from = time.monotonic(), self.done

    def end_pass(self, *, whole: bool) -> None:
        """Record the end of an epoch; it counts only if it went through all items (`whole`)."""
        if whole and self._pass_began is not None:
            self.track.passed(time.monotonic() - self._pass_began, self.done - self._pass_from)
        self._pass_began = None


_loops: list[Loop] = []
"""The loops, outermost first; a finished loop stays until another loop replaces it."""


def open_loop(
    label: str, total: SupportsFloat | None, initial: int = 0, place: FrameType | None = None
) -> Loop:
    """Open a loop inside the open ones; the caller counts its steps, and calls its `end`.

    Parameters
    ----------
    label, total
        As for `progress`.
    initial
        The number of iterations done before.
    place
        The frame that contains the loop; by default the caller's.
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
    """Iterate over `iterable`; a bar below the cell shows the progress while the cell runs.

    Loops may be nested, and every rank may use it: the bar shows the progress of rank 0, the
    samples a second of all ranks together, and names the slowest rank. Outside a rank it only
    iterates.

    Parameters
    ----------
    iterable
        A loader, a range, any iterable.
    label
        The name of the bar.
    total
        The number of items; by default ``len(iterable)`` if it has a length.
    samples
        The number of samples in an item; by default as many as the sampler of a `DataLoader` says.
        In items of other iterables samples are counted if there are several columns of the same
        length, as in a batch of inputs and labels; else their number is unknown.

    Yields
    ------
    Item
        The items of `iterable`.

    Raises
    ------
    TypeError
        If `total` or `samples` is not a number; an infinite number means unknown.
    """
    if total is None:
        try:
            total = len(iterable)  # type: ignore[arg-type]  # it may have no length
        except TypeError:
            total = None
    counted = _count("samples", samples)
    given = UNKNOWN if counted is None else float(counted)
    loop = open_loop(label, total, place=sys._getframe().f_back)
    clock = time.monotonic
    batches, through = None, False
    try:
        asked = clock()
        if samples is None:
            batches = Pass(iterable)
        items = iter(iterable) if batches is None else batches.items  # a loader starts its workers
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
            inside = given if batches is None else batches.samples(item)
            yield item
            loop.done += 1
            loop.samples += inside
    finally:
        if batches is not None:
            batches.close()
        loop.end(through=through)


def _told(label: str) -> str:
    """Return a label that can be sent and shown."""
    return str(label)[:LONGEST_LABEL].encode(errors="replace").decode()


def _count(what: str, number: SupportsFloat | None) -> int | None:
    """Return any kind of number as a Python int, which can be sent."""
    if number is None:
        return None
    try:
        found = float(number)
    except (TypeError, ValueError, OverflowError) as err:
        msg = f"nbdist.progress: {what} is {number!r}, which is not a number"
        raise TypeError(msg) from err
    return math.ceil(found) if abs(found) < MOST else None


def bars() -> list[Bar]:
    """Return the bars of this process's loops, those of tqdm included. The agent's thread."""
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
        pass  # not there, or changing now: the next look finds it
    return found[:MOST_BARS]


def end() -> list[Bar]:
    """Return the final bars of all loops, and forget the loops. Main thread."""
    ended = [loop.bar(final=True) for loop in _loops[:MOST_BARS]]
    _loops.clear()
    pace.forget()
    return ended


def _in_fork() -> None:
    """Forget all loops in a fork of a rank."""
    _loops.clear()
    pace.forget()


os.register_at_fork(after_in_child=_in_fork)
