"""What each rank takes of its machine: kept for the whole job, the same seconds on all ranks."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from nbdist.job.rows import RankRow
from nbdist.metrics.job_metrics import Metrics, resources
from nbdist.metrics.resource_names import EVERY_SECOND_UNTIL, RAREST, UNITS, interval
from nbdist.metrics.thinned_curves import Curve
from nbdist.rank.metrics import resource_file as measuring
from nbdist.rank.metrics.resource_file import Resources, Traffic
from nbdist.view import page_state as view_state
from nbdist.view.job_view import Seen
from nbdist.view.page_state import Frames, packed
from nbdist.view.panels import panels, resource_panels
from nbdist.wire.activity import Vitals
from tests.helpers.notebook import on_ranks
from tests.test_metrics import unpacked
from tests.test_metrics_shown import LAUNCHERS, flags

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

BEGAN = 1_000_000.0
WEEK = 7 * 24 * 3600


class Clock:
    """A rank's clocks, its CPU time and its host's counters, which stand still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.spent = 0.0
        self.received = self.sent = 0
        clocks = SimpleNamespace(
            time=lambda: BEGAN + self.now,
            monotonic=lambda: 77 + self.now,
            process_time=lambda: self.spent,
        )
        monkeypatch.setattr(measuring, "time", clocks)
        monkeypatch.setattr(measuring, "traffic", lambda: Traffic(self.received, self.sent))

    def pulses(self, resources: Resources, seconds: float, *, rss: int = 100) -> None:
        """Let so much time pass, with two pulses a second and half a core in use."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.spent += 0.25
            self.received += 500
            self.sent += 5
            resources.look(Vitals(rss))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def kept(tmp_path: Path) -> Metrics:
    """Return what reads the files of a job's two ranks."""
    return resources(tmp_path, "7", (0, 1))


def test_each_second_of_a_job_is_kept(clock: Clock, tmp_path: Path, kept: Metrics) -> None:
    taken = Resources(str(tmp_path), "7", 0, BEGAN)
    clock.pulses(taken, 2.5)
    taken.look(Vitals(900, gpu=30.0, gpu_memory=7))
    clock.pulses(taken, 0.5, rss=200)
    taken.end()
    assert {name: kept[name].steps.tolist() for name in kept} == {
        "CPU": [1, 2, 3], "memory": [1, 2, 3], "GPU": [3], "GPU memory": [3],
        "network received": [1, 2, 3], "network sent": [1, 2, 3],
    }  # fmt: skip
    assert kept["CPU"].values.tolist() == [50, 50, 50]
    assert kept["memory"].values.tolist() == [100, 100, 900]
    assert kept["memory"].max() == 900
    assert kept["GPU"].values.tolist() == [30]
    assert kept["network received"].values.tolist() == [1000, 1000, 1000]
    assert kept["network sent"].values.tolist() == [10, 10, 10]
    assert kept["memory"].times.tolist() == [BEGAN + 1, BEGAN + 2, BEGAN + 3]
    assert set(kept) == set(UNITS)
    assert repr(kept).startswith("<resources of job 7: CPU (3), memory (3)")
    assert (tmp_path / "resources7.0").stat().st_mode & 0o777 == 0o600


def test_ranks_that_begin_apart_keep_the_same_seconds(
    clock: Clock, tmp_path: Path, kept: Metrics
) -> None:
    first = Resources(str(tmp_path), "7", 0, BEGAN)
    clock.pulses(first, 1.5, rss=10)
    second = Resources(str(tmp_path), "7", 1, BEGAN)
    for _ in range(8):
        clock.pulses(first, 0.5, rss=10)
        second.look(Vitals(30))
    assert kept["memory"].of(0).steps.tolist() == [1, 2, 3, 4, 5]
    assert kept["memory"].of(1).steps.tolist() == [2, 3, 4, 5]
    seconds, mean = kept["memory"].mean()
    assert (seconds.tolist(), mean.tolist()) == ([1, 2, 3, 4, 5], [10, 20, 20, 20, 20])


def test_a_rank_started_anew_goes_on_in_its_file(
    clock: Clock, tmp_path: Path, kept: Metrics
) -> None:
    for start in range(2):
        taken = Resources(str(tmp_path), "7", 0, BEGAN)
        clock.pulses(taken, 3, rss=100 * (1 + start))
    kept.read()
    memory = next(curve for curve in kept.curves() if curve.name == "memory")
    assert memory.line.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert memory.line.mean.tolist() == [100, 100, 100, 200, 200, 200]


def test_a_run_of_a_week_has_a_small_file(clock: Clock, tmp_path: Path, kept: Metrics) -> None:
    taken = Resources(str(tmp_path), "7", 0, BEGAN)
    while clock.now < WEEK:
        clock.now += 0.5 if clock.now < 2 * EVERY_SECOND_UNTIL else 7.3
        taken.look(Vitals(100, gpu=1.0, gpu_memory=1))
    taken.end()
    steps = kept["memory"].steps.tolist()
    assert steps[: EVERY_SECOND_UNTIL + 1] == [*range(1, EVERY_SECOND_UNTIL + 1), 1202]
    assert all(step % interval(step) == 0 for step in steps[:-1])
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert max(gaps) == RAREST
    assert steps[-1] >= WEEK - 1
    assert (tmp_path / "resources7.0").stat().st_size < 5e6


def test_a_short_job_leaves_no_file(clock: Clock, tmp_path: Path) -> None:
    taken = Resources(str(tmp_path), "7", 0, BEGAN)
    clock.pulses(taken, 0.5)
    taken.end()
    taken.look(Vitals(100))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_the_curves_and_not_the_training(
    clock: Clock, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = Resources(str(tmp_path / "gone"), "7", 0, BEGAN)
    clock.pulses(taken, 5)
    taken.end()
    assert capfd.readouterr().err.count("resources of this rank are no longer recorded") == 1


def test_what_has_been_forked_writes_nothing(clock: Clock, tmp_path: Path) -> None:
    taken = Resources(str(tmp_path), "7", 0, BEGAN)
    clock.pulses(taken, 0.5)
    clock.now += 5
    child = os.fork()
    if child == 0:
        taken.end()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(tmp_path.iterdir()) == []


def test_an_interface_that_goes_makes_no_number(
    clock: Clock, tmp_path: Path, kept: Metrics
) -> None:
    taken = Resources(str(tmp_path), "7", 0, BEGAN)
    clock.pulses(taken, 2)
    clock.received = 0
    clock.pulses(taken, 2)
    assert kept["network received"].steps.tolist() == [1, 2, 4]
    assert kept["network received"].values.min() == 1000


def test_no_byte_is_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {
        name: SimpleNamespace(bytes_recv=received, bytes_sent=10 * received)
        for name, received in {"lo": 1, "docker0": 2, "bond0": 4, "eth0": 8, "eth1": 16}.items()
    }
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: counters)
    monkeypatch.setattr(measuring, "INTERFACES", tmp_path)
    measuring._is_hardware.cache_clear()
    assert measuring.traffic() == (30, 300), "a container's: nothing is known of hardware"
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    (tmp_path / "eth1" / "device").mkdir(parents=True)
    measuring._is_hardware.cache_clear()
    assert measuring.traffic() == (24, 240)
    (tmp_path / "eth1" / "master").symlink_to(tmp_path / "eth0")
    measuring._is_hardware.cache_clear()
    assert measuring.traffic() == (8, 80)
    measuring._is_hardware.cache_clear()


def seen_with(found: Metrics, ranks: int, state: str = "running") -> Seen:
    """Return what a page is shown: one metric, which has the name of a resource, and these."""
    found.read()
    memory = Curve("memory", (0,))
    memory.add({0: 1}, np.array([5]), np.array([5.0]), np.array([5.0]))
    rows = [RankRow(rank, "", "cpu", state, *[None] * 5) for rank in range(ranks)]
    return Seen(
        "Job 7", state, 1.0, [], "", rows, panels([memory])[0], "",
        resources=resource_panels(found.curves()),
    )  # fmt: skip


def test_the_page_gets_them_now_and_then_and_all_of_them_in_the_end(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [Resources(str(tmp_path), "7", rank, BEGAN) for rank in range(2)]
    found, frames, told = resources(tmp_path, "7", (0, 1)), Frames(), 0
    page: Any = None
    monkeypatch.setattr(view_state, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for look in range(400):
        clock.pulses(ranks[0], 0.5, rss=10**9)
        ranks[1].look(Vitals(2 * 10**9))
        seen = seen_with(found, 2, "done" if look == 399 else "running")
        frame = frames.frame(seen)
        told += b'"resources":null' not in frame
        page = unpacked(frame, page)
    assert told == 201, "once a second"
    whole = unpacked(packed(seen))
    assert page == {**whole, "whole": False, "floats": page["floats"]}
    titles = [panel["title"] for panel in page["resources"]]
    assert titles == ["CPU, % of one core", "Memory, bytes", "Network of the host, bytes/s"]
    (memory,) = page["resources"][1]["curves"]
    assert [each["values"][-1] for each in memory["each"]] == [1e9, 2e9]
    assert memory["x"][-1] == 200
    assert [curve["label"] for curve in page["resources"][2]["curves"]] == ["received", "sent"]
    assert page["panels"][0]["curves"][0]["mean"] == [5], "metrics have their own names"


def test_what_the_page_gets_of_a_long_job_is_bounded(clock: Clock, tmp_path: Path) -> None:
    sizes = {}
    for count in (2, 64, 65):
        ranks = [Resources(str(tmp_path), str(count), rank, BEGAN) for rank in range(count)]
        for second in range(1, 300):
            clock.now = float(second)
            for each in ranks:
                each.look(Vitals(10**9))
        found = resources(tmp_path, str(count), tuple(range(count)))
        sizes[count] = len(packed(seen_with(found, count)))
        clock.now = 0.0
    assert sizes[2] < 25_000
    assert sizes[64] < 110_000
    assert sizes[65] < sizes[64] / 4, "mean and range alone"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_rank_is_measured_whoever_has_started_it(
    shared_kernel: Kernel, launcher: str
) -> None:
    shared_kernel.run("%load_ext nbdist\nimport nbdist")
    on_ranks(
        shared_kernel,
        """
        import time
        kept = bytearray(100_000_000)
        until = time.monotonic() + 4.2
        while time.monotonic() < until:
            spent = time.process_time() + 0.02
            while time.process_time() < spent:
                pass
            time.sleep(0.05)
        """,
        flags(launcher),
    )
    asked = shared_kernel.run(
        "found = nbdist.jobs()[-1].resources\n"
        "memory, cpu = found['memory'], found['CPU']\n"
        "print([len(memory.of(rank).values) >= 3 for rank in (0, 1)])\n"
        "print(memory.max() > 1e8, cpu.max() > 5, found['network sent'].values.min() >= 0)"
    )
    assert asked.stdout == "[True, True]\nTrue True True\n"
