"""Rates and times left against the truth, for steps of every length, by a clock of the test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nbdist.job import rows
from nbdist.rank.metrics import progress as progressing
from nbdist.wire.activity import Vitals
from nbdist.wire.messages import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbdist.wire.activity import Bar

LOOK_SECONDS = 0.5
"""How often the agent's thread looks at the loops."""


class Clock:
    """Time that passes only as the test says, and is looked at twice a second as it does."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.look: Callable[[], None] = lambda: None
        self._look_at = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def work(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while max(self._look_at, self.now) <= end:
            self.now = max(self._look_at, self.now)
            self._look_at = self.now + LOOK_SECONDS
            self.look()
        self.now = end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Return the clock of all loops."""
    progressing.end()
    made = Clock()
    monkeypatch.setattr(progressing, "time", SimpleNamespace(monotonic=made.monotonic))
    yield made
    progressing.end()


def bar(depth: int = 0) -> Bar:
    """Return what the rank would tell now."""
    return progressing.bars()[depth]


@pytest.mark.parametrize(
    "step", [0.001, 0.01, 0.0301, 0.1, 0.7, 1, 2.5, 6, 8, 13, 33, 60, 200, 600]
)
def test_steps_of_every_length(clock: Clock, step: float) -> None:
    """The first one compiles, and takes far longer: it is told until the second one has ended."""
    total, first = max(25, int(30 / step)), 10 * step + 5
    end = clock.now + first + (total - 1) * step
    looks = [0, 0, 0]

    def look() -> None:
        told = bar()
        looks[min(told.done, 2)] += 1
        if told.done == 0:
            assert (told.rate, told.left) == (None, None), "nothing is known of a part of a step"
        elif told.rate is not None and told.done == 1:
            assert told.rate == pytest.approx(1 / first)
        elif told.done > 1 + 0.03 / step:  # short steps are noted several at a time
            assert told.rate == pytest.approx(1 / step, rel=1e-6)
            assert told.left == pytest.approx(end - clock.now, abs=1e-3 + 2 * step * (step < 0.03))
        assert told.still is None

    clock.look = look
    for i in progressing.progress(range(total)):
        clock.work(step if i else first)
    assert looks[0] >= 10
    assert looks[2] >= 40
    (ended,) = progressing.end()
    assert ended.rate == pytest.approx(total / (first + (total - 1) * step)), "at the end all of it"
    assert ended.left is None


def test_epochs_with_batches(clock: Clock) -> None:
    """Ten epochs of 33 s: an outer loop is as right as an inner one."""
    end = clock.now + 10 * 33
    seen = 0

    def look() -> None:
        nonlocal seen
        if (outer := bar()).done and not outer.over:
            seen += 1
            assert outer.rate == pytest.approx(1 / 33)
            assert outer.left == pytest.approx(end - clock.now, abs=0.1)
        if len(progressing.bars()) > 1 and (inner := bar(1)).done > 1 and not inner.over:
            assert inner.rate == pytest.approx(1 / 0.3)

    clock.look = look
    for epoch in progressing.progress(range(10), "epoch"):
        for _ in progressing.progress(range(100), f"epoch {epoch}"):
            clock.work(0.3)
        clock.work(3)  # what comes after the batches
        assert bar(1).over
        assert bar(1).left is None
    assert seen > 500


def test_uneven_steps(clock: Clock) -> None:
    """Steps of 1 and 9 s in turn: a rate over few of them would swing from 0.1 to 1 a second."""
    end, seen = clock.now + 300, 0

    def look() -> None:
        nonlocal seen
        told = bar()
        if told.done > 10:
            seen += 1
            assert told.rate == pytest.approx(1 / 5, rel=0.1)
            assert told.left == pytest.approx(end - clock.now, abs=0.1 * (end - clock.now) + 5)
        assert told.still is None

    clock.look = look
    for i in progressing.progress(range(60)):
        clock.work(9 if i % 2 else 1)
    assert seen > 400


def test_a_loop_that_becomes_slower(clock: Clock) -> None:
    for i in progressing.progress(range(100)):
        clock.work(1 if i < 50 else 3)
        if i == 75:
            assert bar().rate == pytest.approx(1 / 3), "what was long ago counts no more"


def test_a_loop_that_stands_still_says_so(clock: Clock) -> None:
    for i in progressing.progress(range(10)):
        clock.work(8)
        if i == 4:
            left = bar().left
            assert left == pytest.approx(6 * 8 - 8), "counted down within the step"
            clock.work(8)
            assert bar().left == pytest.approx(5 * 8), "those after it are still to come"
            assert bar().still is None
            clock.work(60)
            told = bar()
            assert told.still == pytest.approx(8 + 8 + 60)
            assert told.left is None
            (row,) = rows.bars({0: Pulse("1", None, "", None, Vitals(0), bars=[told])})
            assert (row.rate, row.samples, row.left, row.still) == (None, None, None, told.still)
        if i == 6:
            assert bar().still is None


def test_a_loop_that_goes_on_where_it_was(clock: Clock) -> None:
    loop = progressing.open_loop("train", 110, 100)
    assert bar().rate is None
    for step in range(100, 105):
        clock.work(8)
        loop.count(step + 1, samples=4)
        assert bar().rate == pytest.approx(1 / 8)
        assert bar().samples == pytest.approx(1 / 2)
        assert bar().left == pytest.approx((110 - step - 1) * 8)
    later = progressing.open_loop("epoch", 10)
    later.goes_on_from(6)  # Keras tells it with the first epoch
    clock.work(20)
    later.count(7)
    assert bar(1).rate == pytest.approx(1 / 20)


def test_samples_and_waits(clock: Clock) -> None:
    def loader() -> Iterator[list[int]]:
        for i in range(20):
            clock.work(60 if i == 0 else 2)  # its workers start
            yield [0]

    for i, _ in enumerate(progressing.progress(loader(), total=20, samples=32)):
        if i > 1:
            told = bar()
            assert told.rate == pytest.approx(1 / 8)
            assert told.samples == pytest.approx(32 / 8)
            assert told.waited == pytest.approx(2 / 8)
        clock.work(6)


def test_tqdms_bars_stay_as_tqdm_tells_them() -> None:
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=10, file=SimpleNamespace(write=len, flush=int)) as shown:
        shown.update(4)
        (told,) = progressing.bars()
        assert told.still is None
        if told.rate is not None:
            assert told.left == pytest.approx(6 / told.rate)
