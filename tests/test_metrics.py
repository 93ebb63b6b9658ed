"""What ranks log: read at once, kept whole, thinned for the screen, the same for every launcher."""

from __future__ import annotations

import io
import json
import math
import os
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

import nbdist
from nbdist.metrics import metrics as collected
from nbdist.metrics.curves import BUCKETS, Curve
from nbdist.metrics.metrics import Metrics
from nbdist.rank import metrics as recording
from nbdist.rank import progress as progressing
from nbdist.widgets.panels import panels, place
from nbdist.widgets.seen import Seen
from nbdist.widgets.state import packed
from nbdist.wire.doing import Bar
from nbdist.wire.points import points_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

torch = pytest.importorskip("torch")


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Metrics]:
    """Make this process rank 0 of a job; `recording.end` has all it has logged on disk."""
    recording.begin(str(tmp_path), "7", 0)
    yield Metrics(tmp_path, "7", (0, 1))
    recording.end()


def only(metrics: Metrics) -> Curve:
    """Return the only curve, current."""
    metrics.read()
    (curve,) = metrics.curves()
    return curve


def curve_of(*steps: int, name: str = "x") -> Curve:
    """Return a curve on one rank whose values are its steps."""
    curve = Curve(name, (0,))
    for step in steps:
        curve.add({0: 1}, np.array([step]), np.array([float(step)]))
    return curve


# -- log -------------------------------------------------------------------------------------------


def test_scalars_of_all_kinds_are_read_at_once(metrics: Metrics) -> None:
    changed = torch.tensor([2.5])
    graph = torch.tensor(3.0, requires_grad=True) * 2
    nbdist.log(
        a=1, b=2.5, c=True, d=np.float32(0.5), e=np.array([4]), f=changed, g=graph, h=10**400
    )
    changed.zero_()
    recording.end()
    values = {name: metrics[name].values.tolist() for name in metrics}
    assert values == {
        "a": [1], "b": [2.5], "c": [1], "d": [0.5], "e": [4], "f": [2.5], "g": [6], "h": [math.inf],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("high", "a str 'high'"),
        (None, "a NoneType None"),
        (1j, "a complex 1j"),
        (np.ones((2, 3)), "a ndarray of shape (2, 3)"),
        (torch.ones(2), "a Tensor of shape (2,)"),
    ],
)
def test_what_is_no_number_is_refused_where_it_is_logged(
    metrics: Metrics, value: object, told: str
) -> None:
    with pytest.raises(TypeError, match=r"nbdist\.log: `loss` is ") as raised:
        nbdist.log(loss=value)
    assert told in str(raised.value)
    with pytest.raises(TypeError, match="no whole number"):
        nbdist.log(loss=1, step=0.5)  # type: ignore[arg-type]  # that is what is tried
    recording.end()
    assert list(metrics) == []


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (math.nan, "step is nan, which is no whole number"),
        (math.inf, "beyond"),
        (2**63, "beyond"),
        (-(10**400), "beyond"),
    ],
)
def test_steps_that_cannot_be_kept_are_refused(metrics: Metrics, step: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        nbdist.log(loss=1, step=step)
    nbdist.log(loss=2, step=2**62)
    nbdist.log(loss=3)
    nbdist.log(loss=4, step=-(2**62))
    recording.end()
    assert only(metrics).line.steps.tolist() == [-(2.0**62), 2.0**62]
    assert metrics["loss"].steps.tolist() == [2**62, 2**62 + 1, -(2**62)]


@pytest.mark.parametrize("name", [1, None, "\ud800", "x" * 501])
def test_names_that_cannot_be_kept_are_refused(metrics: Metrics, name: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"nbdist\.log: the name"):
        nbdist.log({name: 1})
    nbdist.log({np.str_("good"): 1})
    recording.end()
    assert list(metrics) == ["good"]


def test_a_job_may_end_while_a_thread_logs_for_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    ending: list[threading.Thread] = []

    def end_meanwhile(thread: threading.Thread) -> None:
        if thread.name == "nbdist-metrics":
            ending.append(threading.Thread(target=recorder.end))
            start(ending[0])
            time.sleep(0.1)
        start(thread)

    recorder = recording.Recorder(str(tmp_path), "8", 0)
    monkeypatch.setattr(threading.Thread, "start", end_meanwhile)
    recorder.add(None, {"a": 1.0})
    ending[0].join()
    assert recorder._file == -1
    assert Metrics(tmp_path, "8", (0,))["a"].values.tolist() == [1]


def test_steps_count_themselves_and_may_be_given(metrics: Metrics) -> None:
    for i in range(3):
        nbdist.log(a=i)
        nbdist.log({"b/c": i}, a=i, step=10 * i)
    nbdist.log({"b/c": 9})
    recording.end()
    assert metrics["a"].steps.tolist() == [0, 0, 1, 10, 11, 20]
    assert metrics["b/c"].steps.tolist() == [0, 10, 20, 21]
    assert np.all(np.diff(metrics["a"].times) >= 0)


def test_outside_a_rank_and_in_what_it_forks_nothing_is_logged(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "nbdist.magics", raising=False)  # it makes a notebook of this
    nbdist.log(a=1)
    child = os.fork()
    if child == 0:
        try:
            nbdist.log(a=2)
        finally:
            os._exit(0 if recording._recorder is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    recording.end()
    nbdist.log(a=3)
    assert metrics["a"].values.tolist() == [1]
    assert list(nbdist.progress([5, 6])) == [5, 6]


def test_more_than_the_thread_can_pack_is_packed_by_who_logs(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PACK_SECONDS", 100.0)
    monkeypatch.setattr(recording, "MOST_WAITING", 100)
    most = 0
    for i in range(1000):
        nbdist.log(a=i)
        assert recording._recorder is not None
        most = max(most, len(recording._recorder.waiting))
    recording.end()
    assert most <= 101
    assert metrics["a"].values.tolist() == list(range(1000))


def test_threads_may_log_side_by_side(metrics: Metrics) -> None:
    def work(number: int) -> None:
        for i in range(500):
            nbdist.log({f"t{number}": i, "all": number})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording.end()
    assert len(metrics["all"].values) == 2000
    assert all(metrics[f"t{n}"].values.tolist() == list(range(500)) for n in range(4))


def test_a_full_disk_costs_the_metrics_and_not_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording.begin(str(tmp_path / "gone"), "1", 0)
    nbdist.log(a=1)
    recording.end()
    assert "nothing more is kept" in capfd.readouterr().err


# -- curves ----------------------------------------------------------------------------------------


def test_few_points_are_exact_and_many_keep_mean_and_range() -> None:
    few = curve_of(3, 5, 4)
    assert few.line.steps.tolist() == few.line.mean.tolist() == [3, 4, 5]
    steps = np.arange(1_000_000)
    values = np.sin(steps / 1000)
    values[654_321] = 50.0
    many = Curve("x", (0,))
    for part in np.array_split(steps, 100):
        many.add({0: len(part)}, part, values[part])
    line = many.line
    assert BUCKETS / 2 <= len(line.steps) <= BUCKETS
    assert line.high.max() == 50.0
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
    curve.add({0: 2, 2: 1}, np.array([0, 1, 0]), np.array([1.0, 2.0, 4.0]))
    line = curve.line
    assert (line.mean.tolist(), line.low.tolist(), line.high.tolist()) == (
        [2.5, 2], [1, 2], [4, 2],
    )  # fmt: skip
    assert curve.ranks == [0, 2]
    assert curve.latest == 3.0
    np.testing.assert_array_equal(curve.of(2), [4.0, np.nan])


def test_what_is_not_finite_is_marked() -> None:
    curve = Curve("loss", (0, 3))
    curve.add({0: 2, 3: 2}, np.array([0, 1, 0, 1]), np.array([1, np.nan, 2, -np.inf]))
    assert [tuple(mark) for mark in curve.marks] == [(1, "nan", 0), (1, "-inf", 3)]
    assert curve.line.mean.tolist()[0] == 1.5
    assert math.isnan(curve.line.mean[1])
    assert curve.range == (1.0, 2.0)


def test_a_rank_that_begins_anew_draws_over_what_it_had(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, "7", (0,))
    for start, first in ((0, 0), (1, 5)):
        recording.begin(str(tmp_path), "7", 0, start)
        for step in range(first, 10 - start):
            nbdist.log(loss=start, step=step)
        recording.end()
    curve = only(metrics)
    assert curve.line.mean.tolist() == [0] * 5 + [1] * 4
    assert len(metrics["loss"].values) == 14


def test_names_beyond_number_have_no_curves_and_are_kept(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "MOST_CURVES", 3)
    nbdist.log({f"x{i}": i for i in range(5)})
    recording.end()
    metrics.read()
    assert [curve.name for curve in metrics.curves()] == ["x0", "x1", "x2"]
    assert metrics.further() == ["x3", "x4"]
    assert metrics["x4"].values.tolist() == [4]


def test_half_a_frame_waits_for_its_other_half(tmp_path: Path, metrics: Metrics) -> None:
    nbdist.log(a=1)
    recording.end()
    file = points_file(tmp_path, "7", 0)
    data = file.read_bytes()
    file.write_bytes(data + data[:-3])
    assert only(metrics).points == 1
    assert not metrics.read()
    with file.open("ab") as more:
        more.write(data[-3:])
    assert only(metrics).points == 2
    assert metrics["a"].values.tolist() == [1, 1]


def test_names_with_a_slash_share_panels() -> None:
    assert [place(name) for name in ("loss", "train/loss", "val/loss", "loss/test")] == [
        ("loss", "loss"), ("loss", "train"), ("loss", "val"), ("loss", "test"),
    ]  # fmt: skip
    assert [place(name) for name in ("grad/norm", "a/b/c")] == [("grad", "norm"), ("a/b", "c")]


# -- series ----------------------------------------------------------------------------------------


def test_series_and_files_of_them(tmp_path: Path, metrics: Metrics) -> None:
    nbdist.log(loss=1.0)
    nbdist.log(loss=3.0, step=0)
    recording.begin(str(tmp_path), "7", 1)
    nbdist.log(loss=5.0, lr=0.1)
    nbdist.log(loss=7.0)
    recording.end()
    loss = metrics["loss"]
    assert loss.ranks.tolist() == [0, 0, 1, 1]
    assert loss.of(1).values.tolist() == [5, 7]
    steps, mean = loss.mean()
    assert (steps.tolist(), mean.tolist()) == ([0, 1], [4, 7])
    assert metrics.last("loss") == 5
    lines = metrics.to_csv(tmp_path / "all.csv").read_text().splitlines()
    assert lines[0] == "name,rank,step,time,value"
    assert len(lines) == 6
    assert repr(metrics) == "<metrics of job 7: loss (4), lr (1)>"
    with pytest.raises(KeyError, match="nothing was logged as 'los'; there is loss, lr"):
        metrics["los"]


# -- progress --------------------------------------------------------------------------------------


def test_loops_are_counted_and_nested() -> None:
    for _ in progressing.progress(range(2), "epoch"):
        batches = ({"x": torch.zeros(8, 2)} for _ in range(3))
        for _ in progressing.progress(batches, "batch"):
            seen = [(bar.label, bar.done, bar.total) for bar in progressing.bars()]
    assert seen == [("epoch", 1, 2), ("batch", 2, None)]
    epoch, batch = progressing.end()
    assert (epoch.done, batch.done, epoch.over, batch.over) == (2, 3, True, True)
    assert epoch.samples is None
    assert batch.rate is not None
    assert batch.samples == pytest.approx(8 * batch.rate)
    assert progressing.bars() == []


def test_a_loop_that_is_left_is_over_and_what_waits_is_told() -> None:
    def slow() -> Iterator[int]:
        for i in range(5):
            time.sleep(0.02)
            yield i

    for i in progressing.progress(slow(), total=5):
        if i == 2:
            break
    (bar,) = progressing.end()
    assert (bar.done, bar.over) == (2, True)
    assert bar.waited is not None
    assert bar.waited > 0.5


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
    with pytest.raises(TypeError, match="samples is 'many', which is no number"):
        list(progressing.progress(range(3), samples="many"))  # type: ignore[arg-type]  # tried
    assert progressing.end() == []


def test_plain_tqdm_is_seen_too() -> None:
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=10, desc="files", file=io.StringIO()) as outer:
        outer.update(4)
        (bar,) = progressing.bars()
    assert (bar.label, bar.done, bar.total, bar.tqdm) == ("files", 4, 10, True)


# -- what the page gets ----------------------------------------------------------------------------


def unpacked(state: bytes) -> tuple[dict[str, Any], Any, Any]:
    """Take a state apart as the page does."""
    (length,) = struct.unpack_from("<I", state)
    header = json.loads(state[4 : 4 + length])
    middle = 4 + length + 8 * header["floats"]
    assert (4 + length) % 8 == 0
    return (
        header,
        np.frombuffer(state[4 + length : middle], "<f8"),
        np.frombuffer(state[middle:], "<f4"),
    )


@pytest.fixture
def fill(tmp_path: Path) -> Callable[[int, int], Metrics]:
    """Return what writes a metric of so many ranks and points."""

    def write(ranks: int, points: int) -> Metrics:
        for rank in range(ranks):
            recording.begin(str(tmp_path), "7", rank)
            for i in range(points):
                nbdist.log(loss=float(rank + i))
        recording.end()
        return Metrics(tmp_path, "7", tuple(range(ranks)))

    return write


def test_the_page_finds_every_array(fill: Callable[[int, int], Metrics]) -> None:
    metrics = fill(2, 5)
    metrics.read()
    seen = Seen("Job", "running", 1.0, [], "", [], panels(metrics.curves())[0], "")
    header, x, y = unpacked(packed(seen))
    (panel,) = header["panels"]
    (curve,) = panel["curves"]
    count = curve["count"]
    assert x[curve["x"] :][:count].tolist() == [0, 1, 2, 3, 4]
    assert y[curve["mean"] :][:count].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert y[curve["low"] :][:count].tolist() == [0, 1, 2, 3, 4]
    assert y[curve["high"] :][:count].tolist() == [1, 2, 3, 4, 5]
    each = {one["rank"]: y[one["values"] :][:count].tolist() for one in curve["each"]}
    assert each == {0: [0, 1, 2, 3, 4], 1: [1, 2, 3, 4, 5]}
    assert (curve["last"], curve["best"], curve["stride"]) == (4.5, [0, 5], 1)


def test_what_the_page_gets_is_bounded(fill: Callable[[int, int], Metrics]) -> None:
    sizes = []
    for ranks, points in ((1, 10), (8, 2000), (64, 2000)):
        metrics = fill(ranks, points)
        metrics.read()
        seen = Seen("Job", "running", 1.0, [], "", [], panels(metrics.curves())[0], "")
        sizes.append(len(packed(seen)))
    assert sizes[0] < 2_000
    assert sizes[2] < 200_000
