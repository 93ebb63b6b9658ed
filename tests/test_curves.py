"""Curves: thinned for the screen, by rank and together, in panels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nbdist.metrics.thinned_curves import BUCKETS, Curve
from nbdist.view.panels import place


def curve_of(*steps: int, name: str = "x") -> Curve:
    """Return a curve on one rank whose values are its steps."""
    curve = Curve(name, (0,))
    for step in steps:
        curve.add({0: 1}, np.array([step]), np.array([float(step)]), np.array([1.0 + step]))
    return curve


def test_few_points_are_exact_and_many_keep_mean_and_range() -> None:
    few = curve_of(3, 5, 4)
    assert few.line.steps.tolist() == few.line.mean.tolist() == [3, 4, 5]
    steps = np.arange(1_000_000)
    values = np.sin(steps / 1000)
    values[654_321] = 50.0
    many = Curve("x", (0,))
    for part in np.array_split(steps, 100):
        many.add({0: len(part)}, part, values[part], np.add(part, 1000.0))
    line = many.line
    assert BUCKETS / 2 <= len(line.steps) <= BUCKETS
    assert line.high.max() == 50.0
    assert (line.times == line.steps + 1000).all(), "when the last value of each was logged"
    assert many.range == (values.min(), 50.0)
    for i in (0, 57, len(line.steps) - 1):
        inside = values[i * many.stride : (i + 1) * many.stride]
        assert line.mean[i] == pytest.approx(inside.mean())
        assert line.steps[i] == min((i + 1) * many.stride, 1_000_000) - 1


def test_steps_may_be_far_apart_come_late_or_be_negative() -> None:
    curve = curve_of(4096 * 3, 0, 4096 * 90, -4096, 4096)
    assert curve.line.steps.tolist() == [-4096, 0, 4096, 3 * 4096, 90 * 4096]
    assert curve.line.mean.tolist() == curve.line.steps.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_any_steps_gives_every_point_its_bucket(seed: int) -> None:
    random = np.random.default_rng(seed)
    steps = random.integers(-2000, 3000 * (1 + seed), 700)
    curve = curve_of(*steps.tolist())
    line = curve.line
    assert line.steps.tolist() == sorted(line.steps.tolist())
    assert (line.steps[0], line.steps[-1]) == (line.steps.min(), steps.max())
    assert np.all((line.low <= line.mean) & (line.mean <= line.high))
    assert np.all(line.high - line.low < curve.stride)
    assert curve._count.sum() == 700


def test_ranks_are_combined_and_each_keeps_its_own() -> None:
    curve = Curve("loss", (0, 1, 2))
    times = np.array([7.0, 8.0, 9.0])
    curve.add({0: 2, 2: 1}, np.array([0, 1, 0]), np.array([1.0, 2.0, 4.0]), times)
    line = curve.line
    assert (line.mean.tolist(), line.low.tolist(), line.high.tolist()) == (
        [2.5, 2], [1, 2], [4, 2],
    )  # fmt: skip
    assert curve.ranks == [0, 2]
    assert curve.latest == 3.0
    np.testing.assert_array_equal(curve.of(2), [4.0, np.nan])
    assert line.times.tolist() == [9, 8]
    np.testing.assert_array_equal(curve.times_of(2), [9.0, np.nan])


def test_what_is_not_finite_is_marked() -> None:
    curve = Curve("loss", (0, 3))
    values = np.array([1, np.nan, 2, -np.inf])
    curve.add({0: 2, 3: 2}, np.array([0, 1, 0, 1]), values, np.arange(4.0))
    assert [tuple(mark) for mark in curve.marks] == [(1, "nan", 0), (1, "-inf", 3)]
    assert curve.line.mean.tolist()[0] == 1.5
    assert math.isnan(curve.line.mean[1])
    assert curve.range == (1.0, 2.0)


def test_names_with_a_slash_share_panels() -> None:
    assert [place(name) for name in ("loss", "train/loss", "val/loss", "loss/test")] == [
        ("loss", "loss"), ("loss", "train"), ("loss", "val"), ("loss", "test"),
    ]  # fmt: skip
    assert [place(name) for name in ("grad/norm", "a/b/c")] == [("grad", "norm"), ("a/b", "c")]


# -- series ----------------------------------------------------------------------------------------
