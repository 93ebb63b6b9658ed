"""What ranks log: read at once, kept whole, thinned for the screen, the same for every launcher."""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbdist
from nbdist.metrics import job_metrics as collected
from nbdist.metrics import series
from nbdist.metrics.job_metrics import Metrics
from nbdist.metrics.points_file import Column, Frame, framed, points_file
from nbdist.metrics.thinned_curves import Curve
from nbdist.rank.metrics import logger as recording
from nbdist.view.job_view import Seen
from nbdist.view.page_state import Frames, packed
from nbdist.view.panels import panels
from tests.helpers.waiting import until

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
        (torch.ones(0), "a Tensor of shape (0,)"),
        (torch.tensor(1j), "a Tensor tensor(0.+1.j)"),
    ],
)
def test_what_is_no_number_is_refused_where_it_is_logged(
    metrics: Metrics, value: object, told: str
) -> None:
    with pytest.raises(TypeError, match=r"nbdist\.log: `loss` is ") as raised:
        nbdist.log(loss=value)
    assert told in str(raised.value)
    with pytest.raises(TypeError, match="not an integer"):
        nbdist.log(loss=1, step=0.5)  # type: ignore[arg-type]  # that is what is tried
    recording.end()
    assert list(metrics) == []


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (math.nan, "step is nan, which is not an integer"),
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
            until(recorder._over.is_set)
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
    assert "nothing more is recorded" in capfd.readouterr().err


# -- read again ------------------------------------------------------------------------------------


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


def test_files_are_read_piece_by_piece(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(100):
        nbdist.log(a=i)
        recording._recorder.pack()  # type: ignore[union-attr]  # a frame for each
    recording.end()
    monkeypatch.setattr(collected, "PIECE", 100)
    assert metrics.read()
    (curve,) = metrics.curves()
    assert curve.line.mean.tolist() == list(range(100))
    assert not metrics.read()


def test_what_a_killed_process_has_begun_swallows_nothing(tmp_path: Path, metrics: Metrics) -> None:
    nbdist.log(a=1)
    recording.end()
    file = points_file(tmp_path, "7", 0)
    data = file.read_bytes()
    file.write_bytes(data + data[:-3])
    recording.begin(str(tmp_path), "7", 0, start=1)
    nbdist.log(a=2, step=1)
    recording.end()
    metrics.read()
    (curve,) = metrics.curves()
    assert curve.line.mean.tolist() == [1, 2]


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
    with pytest.raises(
        KeyError, match="nothing was logged as 'los'; the logged names are loss, lr"
    ):
        metrics["los"]


def test_a_rank_that_begins_anew_draws_over_what_it_had(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, "7", (0,))
    for start, first in ((0, 0), (1, 5)):
        recording.begin(str(tmp_path), "7", 0, start)
        for step in range(first, 10 - start):
            nbdist.log(loss=start, step=step)
        recording.end()
    curve = only(metrics)
    assert curve.line.mean.tolist() == [0] * 5 + [1] * 4
    assert metrics["loss"].values.tolist() == [0] * 5 + [1] * 4


@pytest.mark.parametrize("first_seen", ["after", "between", "late"])
def test_a_try_with_fewer_ranks_replaces_the_values_of_all(tmp_path: Path, first_seen: str) -> None:
    """Rank 2 dies at step 6; the other two go on from step 4, and fail at step 5."""
    metrics = Metrics(tmp_path, "7", (0, 1, 2))

    def run(start: int, rank: int, steps: range) -> None:
        recording.begin(str(tmp_path), "7", rank, start)
        for step in steps:
            nbdist.log(loss=100 * start + 10 * rank + step, step=step)
        nbdist.log(once=start + rank) if start == 0 else None
        recording.end()

    for rank in (1, 2) if first_seen == "late" else (0, 1, 2):
        run(0, rank, range(7))
    if first_seen == "between":
        metrics.read()
    run(1, 1, range(4, 6))
    if first_seen == "late":
        metrics.read()  # rank 1 has begun again when rank 0's first values come
        run(0, 0, range(7))
    run(1, 0, range(4, 6))
    metrics.read()
    loss = metrics.curves()[0]
    expected = [10.0, 11, 12, 13, 109, 110]
    assert loss.line.mean.tolist() == expected
    assert loss.latest == 110
    assert set(loss.last) == {0, 1}
    steps, mean = metrics["loss"].mean()
    assert (steps.tolist(), mean.tolist()) == ([0, 1, 2, 3, 4, 5], expected)
    assert metrics["loss"].tries.max() == 1
    assert metrics.last("loss") == 110
    assert metrics["loss"].last([0]) == 105
    assert metrics.last("once") == 1, "the new try has not logged it"
    text = "".join(series.lines({rank: points_file(tmp_path, "7", rank) for rank in range(3)}))
    told = [line.split(",") for line in text.splitlines()[1:] if line.startswith("loss")]
    assert sorted((int(rank), int(step)) for _, rank, step, _, _ in told) == [
        (rank, step) for rank in range(3) for step in range(6 if rank < 2 else 4)
    ]


# -- what the page gets ----------------------------------------------------------------------------


def unpacked(state: bytes, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a frame as the page does: the state, with lists of numbers in it."""
    (length,) = struct.unpack_from("<I", state)
    header: dict[str, Any] = json.loads(state[4 : 4 + length])
    middle = 4 + length + 8 * header["floats"]
    assert (4 + length) % 8 == 0
    doubles = np.frombuffer(state[4 + length : middle], "<f8").tolist()
    singles = np.frombuffer(state[middle:], "<f4").tolist()

    assert header["whole"] == (before is None)
    for kind in ("panels", "resources"):
        if header[kind] is None:
            assert before is not None
            header[kind] = before[kind]
            continue
        had = {} if before is None else _curves(before, kind)
        for panel in header[kind]:
            for curve in panel["curves"]:
                _fill(curve, had.get(curve["name"], {}), doubles, singles)
    assert not doubles
    assert not singles
    return header


def _fill(
    curve: dict[str, Any], old: dict[str, Any], doubles: list[float], singles: list[float]
) -> None:
    """Put the numbers of a curve behind those that the page has."""

    def take(told: dict[str, Any], old: dict[str, Any], part: str, of: list[float]) -> None:
        begin, count = told["from"], told["count"]
        told[part] = old.get(part, [])[:begin] + of[:count]
        assert len(told[part]) == begin + count
        del of[:count]

    if "count" not in curve:
        curve |= {**old, **curve}
        return
    for part in ("x", "time"):
        take(curve, old, part, doubles)
    for part in ("mean", "low", "high"):
        take(curve, old, part, singles)
    ranks = {each["rank"]: each for each in old.get("each", ())}
    for each in curve["each"]:
        of = ranks.get(each["rank"], {})
        take(each, of, "values", singles)
        for part in ("x", "time"):
            if each.pop(part):
                take(each, of, part, doubles)
        del each["from"], each["count"]
    del curve["from"], curve["count"]


def _curves(state: dict[str, Any], kind: str = "panels") -> dict[str, Any]:
    return {curve["name"]: curve for panel in state[kind] for curve in panel["curves"]}


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
    (panel,) = unpacked(packed(seen))["panels"]
    (curve,) = panel["curves"]
    assert curve["x"] == [0, 1, 2, 3, 4]
    assert curve["mean"] == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert curve["low"] == [0, 1, 2, 3, 4]
    assert curve["high"] == [1, 2, 3, 4, 5]
    assert all(abs(time.time() - at) < 60 for at in curve["time"])
    each = {one["rank"]: one["values"] for one in curve["each"]}
    assert each == {0: [0, 1, 2, 3, 4], 1: [1, 2, 3, 4, 5]}
    assert (curve["last"], curve["best"], curve["stride"]) == (4.5, [0, 5], 1)


def _walk(path: Path, random: np.random.Generator, rank: int, start: int, at: int) -> int:
    """Log a stretch of some metrics on a rank; return the step it has come to."""
    columns = []
    for name in ("loss", "lr", "rare"):
        if name == "rare" and random.random() < 0.7:
            continue
        count = int(random.integers(1, 80))
        steps = at + np.arange(count)
        values = random.normal(size=count)
        values[random.random(count) < 0.05] = np.nan
        times = 1000.0 + steps + (30 if rank == 1 and name == "lr" else 0)
        columns.append(Column(name, steps.tobytes(), times.tobytes(), values.tobytes()))
    with path.open("ab") as file:
        file.write(framed(Frame(start, columns)))
    return at + 80


@pytest.mark.parametrize("seed", range(4))
def test_what_is_new_with_what_the_page_has_is_the_whole(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nbdist.view.page_state.MOST_NUMBERS", 1200
    )  # so that ranks are thinned, too
    random, ranks = np.random.default_rng(seed), (0, 1, 2)
    metrics = Metrics(tmp_path, "7", ranks)
    frames, page, start = Frames(), None, 0
    at = dict.fromkeys(ranks, 0)
    strides = set()
    for _ in range(60):
        if random.random() < 0.1:  # all begin anew, some steps back
            start += 1
            at = dict.fromkeys(ranks, max(0, min(at.values()) - 100))
        for rank in ranks:
            if random.random() < 0.5:
                file = points_file(tmp_path, "7", rank)
                at[rank] = _walk(file, random, rank, start, at[rank])
        metrics.read()
        seen = Seen("Job", "running", 1.0, [], "", [], panels(metrics.curves())[0], "")
        page = unpacked(frames.frame(seen), page)
        assert json.dumps(page["panels"]) == json.dumps(unpacked(packed(seen))["panels"])
        strides |= {curve["stride"] for curve in _curves(page).values()}
    assert len(strides) > 2
    assert len(frames.frame(seen)) < 1000, "nothing is new"


def test_what_the_page_gets_is_bounded(fill: Callable[[int, int], Metrics]) -> None:
    sizes = []
    for ranks, points in ((1, 10), (8, 2000), (64, 2000)):
        metrics = fill(ranks, points)
        metrics.read()
        seen = Seen("Job", "running", 1.0, [], "", [], panels(metrics.curves())[0], "")
        sizes.append(len(packed(seen)))
    assert sizes[0] < 2_000
    assert sizes[2] < 200_000
