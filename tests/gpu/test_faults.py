"""Faults of a rank on a GPU: told plainly, in time, and the kept model trains on.

Two ranks share the GPU under gloo, and under nccl where that lets them; or have two, under nccl.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.gpu.conftest import EVERY_WAY, GLOO
from tests.gpu.machine import MEGABYTE, NO_GPU, REHEARSAL, needs_gpu, used_memory
from tests.gpu.models import DDP, NOW, WAIT, goes_on
from tests.helpers.faults import (
    BOOM,
    BOOM_IN_BACKWARD,
    SECONDS,
    ended_in_time,
    fails,
    shown,
    stopped_by_button,
)
from tests.helpers.notebook import distributed, on_ranks, printed_by
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.conftest import Figure
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

pytestmark = [EVERY_WAY, pytest.mark.repeats]

IN_BACKWARD = f"{BOOM_IN_BACKWARD}\nstep(Boom.apply)"
TOO_MUCH = f"""
step()
if rank == 1: much = torch.empty(1 << 50, dtype=torch.uint8, device=device)
{NOW}
{WAIT}
"""
RAISE = {
    "a collective": (f"step()\nif rank == 1: {BOOM}\n{WAIT}", "ValueError: boom on 1"),
    "backward": (IN_BACKWARD, "ValueError: boom on 1"),
    "lack of memory": (TOO_MUCH, "OutOfMemoryError: CUDA out of memory"),
}
COMPUTE = f"""
work = torch.randn({64 if REHEARSAL else 2000}, {64 if REHEARSAL else 2000}, device=device)
while True:
    for _ in range(20): work = torch.tanh(work @ work)
    float(work[0, 0])
"""
STOP = {
    "computing": COMPUTE,
    "training": "while True: step()",
    "a collective": f"if rank == 0:\n    {WAIT.replace(chr(10), chr(10) + '    ')}\ntime.sleep(60)",
}
HANG = """
total = torch.ones(1, device=device)
if rank == 1:
    while not os.path.exists({go!r}): time.sleep(0.05)
dist.all_reduce(total)
float(total)
print('went on')
"""
GIGABYTE = 1 << 30
OUT_OF_RANGE = f"""
step()
table = torch.nn.Embedding(10, 4, device=device)
if {{asserts}}:
    out = table(torch.tensor([3, 11], device=device))
    float(out.sum())
{WAIT}
"""


def limit(way: str) -> float:
    """Return how long a cell may take to end after a fault; NCCL takes seconds to connect anew."""
    return SECONDS if way == GLOO else 2 * SECONDS


def assert_told_once(failed: Cell, ranks: str) -> None:
    """Check what is said of an assert on the GPU of these ranks, and that torch's words are not."""
    text = failed.error
    found = rf"{ranks} failed on the GPU: device-side assert( `.+`)?: an index out of range, or the"
    assert len(re.findall(found, text)) == 1, failed.seen()
    assert text.count(f"All that {ranks.lower()} had on the GPU is lost.") == 1
    assert text.count("CUDA_LAUNCH_BLOCKING=1") == 1
    assert not re.search(r"SIGABRT|terminate called|frame #|Search for `|Compile with `", text)


@pytest.fixture
def trained(cluster: Kernel) -> Kernel:
    """Return the kernel with a DDP model on its ranks that has taken a step."""
    on_ranks(cluster, DDP)
    return cluster


@pytest.mark.parametrize("where", RAISE)
def test_one_rank_raises_while_the_other_waits(trained: Kernel, way: str, where: str) -> None:
    body, told = RAISE[where]
    if "memory" in where:
        needs_gpu()
    failed = fails(trained, body)
    ended_in_time(failed, limit=limit(way))
    assert f"Rank 1 failed: {told}" in shown(failed).replace("torch.", "")
    assert re.search(r"Rank 0 (was waiting in \w+|was stopped)", shown(failed))
    assert failed.text.count("Traceback") == 1
    if way != GLOO and where == "a collective":
        assert re.search(r"cannot be trusted.*%dist sync", shown(failed), re.DOTALL)
    goes_on(trained, failed)


@pytest.mark.parametrize("inside", STOP)
def test_the_stop_button_stops(trained: Kernel, way: str, inside: str) -> None:
    goes_on(trained, stopped_by_button(trained, STOP[inside], 0.5, limit(way)))


def test_a_hang_is_told_with_ranks_and_lines(cluster: Kernel, way: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    done = cluster.start(distributed(HANG.format(go=str(go))))

    def told() -> str:
        return "\n".join(out.text for out in done.events if out.kind in ("display", "update"))

    waits = 5 if way == GLOO else 6  # under nccl a collective is only queued
    first = rf"rank 0 has waited in all_reduce #\d+ for \d+ s \(cell line {waits}\)"
    cluster.until(lambda: bool(re.search(first, told())), 60)
    cluster.until(lambda: "rank 1 has not reached it (cell line 4" in told(), 60)
    go.touch()
    assert cluster.wait().ok, done.seen()
    assert "Resolved after " in told()
    assert done.stdout == "went on\n"


def test_a_killed_rank_gives_its_memory_back_and_is_replaced(trained: Kernel, way: str) -> None:
    on_ranks(trained, f"if rank == 1: held = bytearray(1) if {REHEARSAL} else "
             f"torch.empty({2 * GIGABYTE}, dtype=torch.uint8, device=device)")  # fmt: skip
    before = used_memory(trained)
    failed = fails(trained, f"{NOW}\nif rank == 1: os.kill(os.getpid(), 9)\nwhile True: step()")
    ended_in_time(failed, limit=limit(way))
    assert "Rank 1 was killed by SIGKILL" in failed.error
    if way != "nccl-on-two-gpus" and not REHEARSAL:  # there it was another GPU's
        until(lambda: used_memory(trained) <= before - 2 * GIGABYTE)
    assert "Rank 1 restarted, " in trained.run("%dist restart 1 --like 0").stdout
    own = "print({p.device for p in model.parameters()} == {device})"
    assert on_ranks(trained, own).stdout == "True\n"
    assert printed_by(trained, 1) == "True\n"
    goes_on(trained, failed)


@pytest.mark.parametrize("asserts", ["rank == 1", "True"], ids=["on rank 1", "on both"])
def test_an_index_out_of_range_is_told_once(trained: Kernel, way: str, asserts: str) -> None:
    needs_gpu()
    on_ranks(trained, "kept = 7")
    failed = fails(trained, OUT_OF_RANGE.format(asserts=asserts))
    assert_told_once(failed, "Rank 1" if "1" in asserts else "Ranks 0-1")
    if "1" in asserts:
        assert "`%dist restart 1 --like 0`" in failed.error
        assert "Rank 1 restarted, " in trained.run("%dist restart 1 --like 0").stdout
        assert on_ranks(trained, "print(kept)").stdout == printed_by(trained, 1) == "7\n"
        goes_on(trained, failed)
    else:
        assert "All ranks will be restarted before the next cell" in failed.error
        on_ranks(trained, DDP)
        goes_on(trained, on_ranks(trained, "step()"))


def test_ten_faults_take_no_more_memory_than_two(trained: Kernel, way: str, figure: Figure) -> None:
    used = []
    for _ in range(3 if REHEARSAL else 10):
        goes_on(trained, fails(trained, RAISE["a collective"][0]))
        trained.run("%dist free")
        used.append(used_memory(trained))
    if REHEARSAL:
        pytest.skip(NO_GPU)
    more = (used[-1] - used[1]) / MEGABYTE
    figure(f"GPU memory after ten faults over that after two, {way}", f"{more:+.0f} MiB")
    assert more <= 64
