"""Faults of all kinds thrown into trainings of all kinds, seeded; see `tests.helpers.storm`.

`make storm N=300` throws as many more, drawn by chance.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from jupyter_core.utils import ensure_event_loop

from tests.helpers.notebook import on_ranks, preload_without_trial
from tests.helpers.storm import Fell, Storm
from tests.helpers.storm_faults import DEADLY, FAULTS
from tests.helpers.training_kinds import TRAININGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

pytestmark = [pytest.mark.repeats, pytest.mark.long]

KINDS = list(TRAININGS)
IN_ONE_TEST = 3
AT_ONCE = 3
"""So many faults befall a training one after the other."""
PERTURBED = {"MALLOC_PERTURB_": "165"}
"""Memory that is freed, or not yet written, gets other values: who uses it is found sooner."""
EACH_MEETS: tuple[tuple[str, ...], ...] = (
    ("raises", "cut"),
    ("spread",),
    ("making", "another", "in the background", "synced", "fault caught"),
    ("dies", "two die", "replaced"),
    ("interrupt", "part", "stopped"),
    ("mismatched", "pending", "destroyed"),
)
"""Of the faults that begin so, every kind of training meets one; each another."""


@dataclass
class Weather:
    """Many storms in one notebook; after one that was not weathered there are new ranks."""

    start: KernelFactory
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    fallen: list[str] = field(default_factory=list)
    kernel: Kernel | None = None

    def begin(self) -> Kernel:
        """Start a notebook with ranks."""
        self.kernel = self.start(env=self.env)
        self.kernel.run("import nbdist")
        # Or each new rank imports what its first optimizer and model need, which takes 2 s.
        preload_without_trial(self.kernel, "torch._dynamo", "torch.distributed.fsdp")
        on_ranks(self.kernel, "pass", "-np 2")
        return self.kernel

    def end(self) -> None:
        """End the notebook; the next storm has another."""
        if self.kernel is not None:
            self.kernel.shutdown()
            self.kernel = None

    def storm(self, kind: str, size: int, seed: int, faults: Sequence[str]) -> None:
        """Throw faults into a training; what does not hold is noted."""
        kernel = self.kernel or self.begin()
        storm = Storm(kernel, kind, size, seed, self.folder)
        try:
            storm.begin()
            for fault in faults:
                storm.throw(FAULTS[fault], deadly=fault in DEADLY)
        except Fell as fell:
            told = f"=== {kind}, {size} ranks, seed {seed}: {', '.join(faults)}\n{fell}\n"
            print(told)  # noqa: T201 - by hand it is read while the storm goes on
            self.fallen.append(told)
            self._clear_up(kernel)

    def _clear_up(self, kernel: Kernel) -> None:
        try:
            if not kernel.cell.done:
                kernel.interrupt()
                kernel.wait(20)
            kernel.run("%dist stop")
        except AssertionError:
            self.end()

    def must_be_weathered(self) -> None:
        """Fail if anything did not hold."""
        if self.fallen:
            heads = "\n".join("\n".join(told.splitlines()[:2]) for told in self.fallen)
            pytest.fail("\n".join([*self.fallen, f"--- {len(self.fallen)} fell ---", heads]), False)


def met_by(number: int) -> list[str]:
    """Return the faults that a kind of training meets, in an order of its own."""
    met = []
    for beginnings in EACH_MEETS:
        faults = [fault for fault in FAULTS if fault.startswith(beginnings)]
        met.append(faults[number % len(faults)])
    random.Random(number).shuffle(met)  # noqa: S311
    return met


def size_of(number: int) -> int:
    """Return how many ranks a kind of training has in the suite."""
    sizes = TRAININGS[KINDS[number]].sizes
    return sizes[number // IN_ONE_TEST % len(sizes)]


BY_SIZE = sorted(range(len(KINDS)), key=size_of)
"""The numbers of the kinds, those with as many ranks one after the other: the ranks stay."""


@pytest.fixture(scope="module")
def _shared(start_shared: KernelFactory, tmp_path_factory: pytest.TempPathFactory) -> Weather:
    shared = Weather(start_shared, tmp_path_factory.mktemp("storms"))
    shared.begin()
    return shared


@pytest.fixture
def weather(_shared: Weather) -> Iterator[Weather]:
    """Return the weather of the module's notebook; after a test that failed, of one of its own."""
    own = _shared.kernel is None
    _shared.fallen.clear()
    yield _shared
    if own or _shared.fallen:
        _shared.end()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("first", range(0, len(KINDS), IN_ONE_TEST))
def test_every_kind_of_training_weathers_faults_of_every_kind(weather: Weather, first: int) -> None:
    for number in BY_SIZE[first : first + IN_ONE_TEST]:
        faults = met_by(number)
        for seed in range(0, len(faults), AT_ONCE):
            weather.storm(KINDS[number], size_of(number), seed, faults[seed : seed + AT_ONCE])
    weather.must_be_weathered()


@dataclass
class Drawn:
    """Storms drawn by chance, which several threads take, each with a notebook of its own.

    Attributes
    ----------
    count, first
        How many, and the seed of the first one.
    kinds, faults
        What is drawn from.
    one
        Whether to end with the first that falls.
    """

    start: KernelFactory
    folder: Path
    count: int
    first: int
    kinds: list[str]
    faults: list[str]
    one: bool
    began: float = field(default_factory=time.monotonic)
    fallen: list[str] = field(default_factory=list)
    done: int = 0

    def all(self, workers: int) -> None:
        """Let all storms happen, so many at a time."""
        seeds = range(self.first, self.first + self.count)
        left = iter(sorted(seeds, key=lambda seed: self._of(seed)[1]))  # the ranks stay
        with ThreadPoolExecutor(workers) as pool:
            threads = [pool.submit(self._some, left, worker) for worker in range(workers)]
        for thread in threads:
            thread.result()
        if self.fallen:
            pytest.fail("\n".join([*self.fallen, f"--- {len(self.fallen)} fell ---"]), False)

    def _some(self, left: Iterator[int], worker: int) -> None:
        (folder := self.folder / str(worker)).mkdir()
        weather = Weather(self.start, folder, PERTURBED)
        try:
            for seed in left:
                self._one(weather, seed)
                if self.one and self.fallen:
                    return
        finally:
            weather.end()
            ensure_event_loop().close()  # jupyter_client makes this loop and keeps it

    def _of(self, seed: int) -> tuple[str, int, list[str]]:
        chance = random.Random(seed)  # noqa: S311
        kind = chance.choice(self.kinds)
        size = chance.choice(TRAININGS[kind].sizes)
        return kind, size, chance.choices(self.faults, k=AT_ONCE)

    def _one(self, weather: Weather, seed: int) -> None:
        kind, size, faults = self._of(seed)
        weather.storm(kind, size, seed, faults)
        self.fallen += weather.fallen
        weather.fallen.clear()
        self.done += 1
        took = time.monotonic() - self.began
        told = f"{self.done} of {self.count}, {took:.0f} s, {len(self.fallen)} fell"
        print(f"{told}: seed {seed}, {kind}, {size} ranks: {', '.join(faults)}", flush=True)  # noqa: T201


def chosen(names: Iterable[str], beginnings: str) -> list[str]:
    """Return the names that begin with one of several words between commas; all without any."""
    found = [name for name in names if name.startswith(tuple(beginnings.split(",")))]
    assert found, f"none of {list(names)} begins with any of {beginnings}"
    return found


def test_storms_by_hand(
    start_kernel: KernelFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    option = request.config.getoption
    if not option("--storm"):
        pytest.skip("`make storm N=300`")
    kinds = chosen(TRAININGS, option("--storm-kinds"))
    faults = chosen(FAULTS, option("--storm-faults"))
    count, first = option("--storm"), option("--storm-seed")
    drawn = Drawn(start_kernel, tmp_path, count, first, kinds, faults, option("--storm-first"))
    drawn.all(option("--storm-workers"))
