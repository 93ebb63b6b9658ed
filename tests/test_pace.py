"""What steps take, and whose they are: without waits for others, the slow rank stands out."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nbdist.backends.groups import wait_time
from nbdist.metrics.slowest_rank import slowest
from nbdist.rank.metrics import pace, progress
from tests.helpers.notebook import on_ranks, preload_training
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

TRAIN = """
    import os, time, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def train(slow, alike=0.01, steps=20):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10)
        )
        model = DistributedDataParallel(net)
        x, began = torch.randn(32, 64), time.monotonic()
        for _ in nbdist.progress(range(steps), "train", samples=32):
            loss = model(x).square().mean()
            time.sleep(alike + 0.1 * (dist.get_rank() == slow))
            loss.backward()
        print("step:", (time.monotonic() - began) / steps)

    def meet(slow):
        began = time.monotonic()
        for _ in nbdist.progress(range(20), "meet"):
            time.sleep(0.01 + 0.1 * (dist.get_rank() == slow))
            dist.all_reduce(torch.ones(1))
        print("step:", (time.monotonic() - began) / 20)
"""
HOROVOD = """
    import time, torch, horovod.torch as hvd
    net = torch.nn.Linear(64, 10)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    sgd = hvd.DistributedOptimizer(sgd, named_parameters=net.named_parameters())
    began = time.monotonic()
    for _ in nbdist.progress(range(20), "train", samples=32):
        loss = net(torch.randn(32, 64)).square().mean()
        time.sleep(0.1 * (hvd.rank() == 1))
        loss.backward()
        sgd.step()
        sgd.zero_grad()
    print("step:", (time.monotonic() - began) / 20)
"""
ENGINES = "-np 3 --backend ddp --launcher engines"


@pytest.fixture(scope="module")
def ranks(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with three ranks that know how to train."""
    preload_training(shared_kernel)
    shared_kernel.run("import nbdist\nfrom nbdist.view.job_view import look")
    on_ranks(shared_kernel, TRAIN, ENGINES)
    return shared_kernel


def straggler(kernel: Kernel) -> str:
    """Return what the view of the last job says of its slowest rank."""
    return kernel.run("print(look(nbdist.jobs()[-1]).straggler)").stdout.strip()


def check(cell: Cell, told: str, rank: int) -> None:
    """Check that a rank is named, and that what it was slowed down by is what it is told for.

    It sleeps 100 ms longer in each step. How long a step was is what the cell has measured.
    """
    step = float(re.findall(r"^step: (\S+)", cell.stdout, re.MULTILINE)[0])
    found = re.fullmatch(
        r"Rank (\d) is the slowest: (\S+) ms/step slower than the median \((\d+) %\)\.",
        told,
    )
    assert found is not None, told
    assert int(found[1]) == rank
    assert 0.05 < float(found[2]) / 1000 < 2 * step
    assert 25 * 0.1 / step < int(found[3]) < 200


@pytest.mark.parametrize("slow", [0, 2])  # rank zero's buffers are what the others wait for
def test_a_slow_rank_is_named_though_all_steps_are_equal(ranks: Kernel, slow: int) -> None:
    check(on_ranks(ranks, f"train({slow})", ENGINES), straggler(ranks), slow)


def test_equal_ranks_name_none(ranks: Kernel) -> None:
    # What chance adds to a step must be little beside it.
    on_ranks(ranks, f"train(-1, alike={allowed(0.1)}, steps=40)", ENGINES)
    assert straggler(ranks) == ""
    own = ranks.run("print([p.bars[0].own for p in nbdist.jobs()[-1].pulses.values()])").stdout
    assert "None" not in own


def test_waits_in_collectives_count_also_without_ddp(ranks: Kernel) -> None:
    check(on_ranks(ranks, "meet(1)", ENGINES), straggler(ranks), 1)


def test_ranks_that_do_not_wait_tell_no_own_time(ranks: Kernel) -> None:
    on_ranks(ranks, "for _ in nbdist.progress(range(9)): time.sleep(0.01)", ENGINES)
    own = ranks.run("print([p.bars[0].own for p in nbdist.jobs()[-1].pulses.values()])").stdout
    assert own.split() == ["[None,", "None,", "None]"]


def test_torchruns_ranks_tell_it_too(ranks: Kernel) -> None:
    cell = on_ranks(ranks, f"{TRAIN}\n    train(1)", "-np 3 --backend ddp --launcher torchrun")
    check(cell, straggler(ranks), 1)


@pytest.mark.horovod
def test_horovods_ranks_tell_it_too(ranks: Kernel) -> None:
    cell = on_ranks(ranks, HOROVOD, "-np 2 --backend horovod --launcher horovodrun")
    check(cell, straggler(ranks), 1)


# -- places and their paces ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_loops() -> Iterator[None]:
    yield
    progress.end()


def test_a_wait_counts_once_and_only_on_the_main_thread() -> None:
    inner = wait_time.timed(lambda seconds: seconds)
    outer = wait_time.timed(lambda: inner(1) + inner(2))
    before = wait_time.so_far()
    assert outer() == 3
    assert wait_time.so_far().times == before.times + 1
    other = threading.Thread(target=outer)
    other.start()
    other.join()
    assert wait_time.so_far().times == before.times + 1
    with pytest.raises(ZeroDivisionError):
        wait_time.timed(lambda: 1 / 0)()
    assert wait_time.so_far().times == before.times + 2


def test_the_first_half_of_the_steps_does_not_count() -> None:
    track = pace.Track("train")
    for step in range(1000):
        seconds = 5.0 if step < 3 else 0.1
        track.add(pace.Totals(seconds, 1, 8, 0.02, 0.03, 1))
    found = track.pace()
    assert found is not None
    assert 500 <= found.steps <= 500 + 1000 / (pace.MOST_MARKS / 2)
    assert found.seconds / found.steps == pytest.approx(0.1)
    assert found.samples == 8 * found.steps
    assert found.waited / found.steps == pytest.approx(0.02)
    assert found.others is not None
    assert found.others / found.steps == pytest.approx(0.03)
    only = pace.Track("once")
    assert only.pace() is None
    only.add(pace.Totals(2.0, 1))
    once = only.pace()
    assert once is not None
    assert (once.steps, once.seconds, once.others) == (1, 2.0, None)


def test_a_wait_that_is_told_a_step_later_is_nobodys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    for steps, seconds, told in ((20, 0.1, 0.05), (1, 0.6, 0.01)):
        loop = progress.open_loop("train", None)
        for _ in range(steps):
            now += seconds
            wait_time.add(told)
            loop.count(loop.done + 1)
        (bar,) = progress.bars()
        loop.end()
        assert bar.own is not None
        assert bar.own < 0.1, "the second loop has only a step, whose wait is not told yet"


def test_loops_of_one_place_are_one_and_of_two_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MARK_SECONDS", 0.0)
    for epoch in progress.progress(range(4), "epochs"):
        for _ in progress.progress(range(10), f"epoch {epoch}", samples=4):
            pass
        for _ in progress.progress(range(3), "val", samples=2):
            pass
    found = {each.label: each for each in pace.paces()}
    assert list(found) == ["epochs", "epoch 0", "val"]
    assert [each.inner for each in found.values()] == [False, True, True]
    assert (found["epochs"].steps, found["epoch 0"].steps, found["val"].steps) == (2, 20, 6)
    assert (found["epoch 0"].samples, found["val"].samples) == (80, 12)
    progress.end()
    assert pace.paces() == []


def test_who_stands_out() -> None:
    assert slowest({0: 0.1}) is None
    assert slowest({0: 0.1, 1: 0.105, 2: 0.1}) is None
    found = slowest({0: 0.01, 1: 0.04, 2: 0.012}, {0: 0.05, 1: 0.05, 2: 0.05})
    assert found is not None
    assert found.rank == 1
    assert (found.seconds, found.share) == pytest.approx((0.03, 0.6))
    assert slowest({0: 0.001, 1: 0.004}, {0: 0.1, 1: 0.1}) is None  # of no weight in the whole
    assert slowest({0: 0.0002, 1: 0.0008}) is None
