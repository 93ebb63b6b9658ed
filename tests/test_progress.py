"""Loops that ranks are in: counted, nested, told of."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from nbdist.rank.metrics import progress as progressing
from nbdist.wire.activity import Bar

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _begins_with_no_loop() -> None:
    """Forget the loops of tests of other modules, which this process may have run before."""
    progressing.end()


def test_loops_are_counted_and_nested() -> None:
    for _ in progressing.progress(range(2), "epoch"):
        batches = ({"x": torch.zeros(8, 2), "y": torch.zeros(8)} for _ in range(3))
        for _ in progressing.progress(batches, "batch"):
            seen = [(bar.label, bar.done, bar.total) for bar in progressing.bars()]
    assert seen == [("epoch", 1, 2), ("batch", 2, None)]
    epoch, batch = progressing.end()
    assert (epoch.done, batch.done, epoch.over, batch.over) == (2, 3, True, True)
    assert epoch.samples is None
    assert batch.rate is not None
    assert batch.samples == pytest.approx(8 * batch.rate)
    assert progressing.bars() == []


def test_a_loop_that_is_left_is_over_and_what_waits_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(progressing, "time", SimpleNamespace(monotonic=lambda: now))

    def slow() -> Iterator[int]:
        nonlocal now
        for i in range(5):
            now += 0.02
            yield i

    for i in progressing.progress(slow(), total=5):
        now += 0.01
        if i == 2:
            break
    (bar,) = progressing.end()
    assert (bar.done, bar.over) == (2, True)
    assert bar.waited == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("number", "kept"),
    [(np.int64(3), 3), (torch.tensor(3), 3), (2.5, 3), (math.inf, None), (10**30, None)],
)
def test_numbers_of_any_kind_travel(number: Any, kept: int | None) -> None:
    for _ in progressing.progress(range(3), "\ud800" + 200 * "x", total=number, samples=number):
        (bar,) = progressing.bars()
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(bar), type=Bar) == bar
    (bar,) = progressing.end()
    assert bar.total == kept
    assert len(bar.label) == progressing.LONGEST_LABEL
    msgspec.msgpack.encode(bar)


def test_what_is_no_number_of_items_is_refused() -> None:
    with pytest.raises(TypeError, match="samples is 'many', which is not a number"):
        list(progressing.progress(range(3), samples="many"))  # type: ignore[arg-type]  # tried
    assert progressing.end() == []


def test_plain_tqdm_is_seen_too() -> None:
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=10, desc="files", file=io.StringIO()) as outer:
        outer.update(4)
        (bar,) = progressing.bars()
    assert (bar.label, bar.done, bar.total, bar.tqdm) == ("files", 4, 10, True)
