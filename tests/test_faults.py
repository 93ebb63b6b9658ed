"""Faults in a cell: told plainly, in time, the true cause first, and the kept model trains on."""

from __future__ import annotations

import re
import time
from textwrap import dedent, indent
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import (
    BOOM,
    BOOM_IN_BACKWARD,
    DEAF,
    MODELS,
    ended_in_time,
    fails,
    shown,
    stopped_by_button,
    trains_on,
)
from tests.helpers.notebook import distributed, new_ranks, on_ranks, preload_training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

RAISE = {
    "a collective": f"step()\nif rank == 1: {BOOM}\ndist.all_reduce(torch.ones(2))",
    "forward": f"""
        step()
        def boom(*_):
            {BOOM}
        if rank == 1:
            if model is None: boom()
            hook = model.register_forward_pre_hook(boom)
        try:
            step()
            dist.barrier()
        finally:
            if rank == 1 and model is not None: hook.remove()
    """,
    "backward": f"""{indent(BOOM_IN_BACKWARD, " " * 8)}
        if model is None:
            Boom.apply(torch.ones(2, requires_grad=True)).sum().backward()
            dist.barrier()
        else:
            optimizer.zero_grad()
            Boom.apply(model(torch.ones(4, 8))).pow(2).mean().backward()
    """,
    "new_group": f"step()\nif rank == 1: {BOOM}\ndist.new_group([0, 1])",
    "full flight": f"""
        big, steps = torch.ones(500_000), 0
        while True:
            step()
            dist.all_reduce(big)
            steps += 1
            if rank == 1 and steps == 50: {BOOM}
    """,
}
STOP = {
    "Python": "while True: pass",
    "sleep": "time.sleep(60)",
    "training": "while True: step()",
    "a collective": "if rank == 0: dist.all_reduce(torch.ones(2))\ntime.sleep(60)",
    "mismatched": """
        if rank == 0:
            dist.all_reduce(torch.ones(2))
        else:
            dist.broadcast(torch.ones(3), 1)
            dist.barrier()
    """,
    "a deaf connection": f"{DEAF}\n    waits.wait()",
    "await": "import asyncio\nawait asyncio.sleep(60)",
}
AT_LARGE = """
    import time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    pair = dist.new_group([0, 1])
    if rank < 2:
        model = DDP(torch.nn.Linear(8, 1), process_group=pair)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def step():
        if rank < 2:
            optimizer.zero_grad()
            model(torch.ones(4, 8) * (rank + 1)).pow(2).mean().backward()
            optimizer.step()
    step()
"""
EVERY_MODEL = pytest.mark.parametrize("trained", MODELS, indirect=True)


@pytest.fixture(scope="module")
def cluster(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with two ranks."""
    preload_training(shared_kernel)
    on_ranks(shared_kernel, "pass", "-np 2")
    return shared_kernel


@pytest.fixture
def three(cluster: Kernel) -> Iterator[Kernel]:
    """Return the kernel with three ranks, which share nothing with the two of other tests."""
    new_ranks(cluster, 3)
    yield cluster
    new_ranks(cluster, 2)


@pytest.fixture
def trained(cluster: Kernel, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Return the kernel with a model on its ranks that has taken a step."""
    on_ranks(cluster, MODELS[request.param] + "\nfirst = step()")
    yield cluster
    on_ranks(cluster, "model = optimizer = None")


@EVERY_MODEL
@pytest.mark.parametrize("where", RAISE)
def test_one_rank_raises_while_the_other_waits(trained: Kernel, where: str) -> None:
    failed = fails(trained, RAISE[where])
    ended_in_time(failed)
    text = shown(failed)
    assert "Rank 1 failed: ValueError: boom on 1" in failed.error
    assert re.search(r"Rank 0 (was waiting in \w+|was stopped)", text)
    assert not re.search(r"[Cc]onnection|GLHF|recvBytes", text)
    assert failed.text.count("Traceback") == 1
    trains_on(trained, failed)


@EVERY_MODEL
@pytest.mark.parametrize("inside", STOP)
def test_the_stop_button_stops(trained: Kernel, inside: str) -> None:
    on_ranks(trained, "step()")
    trains_on(trained, stopped_by_button(trained, STOP[inside], 0.2))


def test_a_fault_while_a_connection_is_deaf(cluster: Kernel) -> None:
    on_ranks(cluster, MODELS["ddp"] + "\nfirst = step()\nkept = 1")
    both_ended = fails(cluster, f"{dedent(DEAF)}\nraise ValueError('not freed by anybody')")
    assert "Ranks 0-1 failed: ValueError" in shown(both_ended)
    assert on_ranks(cluster, "print(kept)").stdout == "1\n"
    trains_on(cluster, both_ended)


def test_the_stop_button_pressed_twice(cluster: Kernel) -> None:
    on_ranks(cluster, "import time\nkept = 1")
    cluster.start(distributed("print('in', flush=True)\nwhile True: time.sleep(1)"))
    cluster.expect("in")
    cluster.interrupt()
    cluster.interrupt()
    assert not cluster.wait(20).ok
    assert on_ranks(cluster, "print('still', kept)").stdout == "still 1\n"


def test_different_errors_are_all_told_and_equal_ones_once(cluster: Kernel) -> None:
    text = shown(fails(cluster, "x = {}\nif rank == 0: x['key']\nelse: 1 / 0"))
    assert "Rank 0 failed: KeyError: 'key' (cell line 3)" in text
    assert "Rank 1 failed: ZeroDivisionError: division by zero (cell line 4)" in text
    failed = fails(cluster, "raise ValueError('the same')")
    assert "Ranks 0-1 failed: ValueError: the same (cell line 2)" in shown(failed)
    assert failed.text.count("Traceback") == 1


def test_ranks_that_parted_are_named_and_made_equal(cluster: Kernel) -> None:
    on_ranks(cluster, MODELS["ddp"] + "\nother = DDP(torch.nn.Linear(2, 2))\nstep()")
    parted = """
        if rank == 0:
            with torch.no_grad():
                next(model.parameters()).add_(1)
        raise RuntimeError("half a step")
    """
    failed = fails(cluster, parted)
    assert "No longer equal on all ranks" in shown(failed)
    assert "`%dist sync model --from 0` makes them equal" in shown(failed)
    trains_on(cluster, failed)
    wrong = cluster.run("%dist sync modle --from 0", check=False)
    assert "there is no variable `modle` on rank 0" in shown(wrong)
    on_ranks(cluster, "if rank == 0: only_here = model")
    began = time.monotonic()
    half = cluster.run("%dist sync only_here --from 0", check=False)
    assert "there is no variable `only_here` on rank 1" in shown(half)
    ended_in_time(half, began)
    trains_on(cluster, half)


def test_a_syntax_error_is_told_before_anything_is_sent(cluster: Kernel) -> None:
    text = shown(fails(cluster, "x = 1\nif x\n    print(x)"))
    assert "SyntaxError" in text
    assert "line 3" in text
    assert "Nothing was sent" in text


def test_a_subgroup_beside_a_rank_that_is_not_in_it(three: Kernel) -> None:
    on_ranks(three, AT_LARGE)
    go_on = "for _ in range(3): step()\ndist.barrier()\nprint('went on')"

    failed = fails(three, f"if rank == 1: {BOOM}\nstep()\ndist.barrier()")
    ended_in_time(failed)
    assert "Rank 1 failed: ValueError: boom on 1" in shown(failed)
    assert re.search(r"Rank 2 was waiting in barrier at cell line 4", shown(failed))
    assert "went on" in on_ranks(three, go_on).text

    # Not once: with collectives in full flight, gloo may forget to wake who waits for a write.
    for _ in range(4):
        failed = fails(three, f"if rank == 2: {BOOM}\nwhile True: step()")
        ended_in_time(failed)
        assert "Rank 2 failed: ValueError: boom on 1" in failed.error
        assert "went on" in on_ranks(three, go_on).text

    for victim, like, lacks in (
        (2, 0, "missing: model ("),
        (1, 0, "nothing is missing"),
        (0, 1, "nothing is missing"),
    ):
        failed = fails(three, f"if rank == {victim}: import os; os._exit(4)\ndist.barrier()")
        assert f"Rank {victim} exited with code 4" in shown(failed)
        restarted = three.run(f"%dist restart {victim} --like {like}").stdout
        assert lacks in restarted
        if victim == 2:
            assert "a process group that does not contain the new rank" in restarted
        assert "went on" in on_ranks(three, go_on).text
