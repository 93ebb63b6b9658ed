"""Figures of two ranks that share a GPU; each says in the report what it is."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gpu.machine import NAME, REHEARSAL, first_gpu
from tests.gpu.models import DDP, WAIT
from tests.helpers.faults import SECONDS, fails
from tests.helpers.notebook import on_ranks
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.gpu.conftest import Figure
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

TURNS, CELLS = (1, 10) if REHEARSAL else (5, 10)
STEPS, BATCH = (5, 2) if REHEARSAL else (300, 256)
RANKS = "1" if REHEARSAL else "2"
"""The ranks of plain torchrun: in a rehearsal its script must work, and its speed says nothing."""
pytestmark = pytest.mark.repeats

TRAIN = f"""
import time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
torch.manual_seed(0)
net = DDP(nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
).to(device))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
images = torch.randn({BATCH}, 3, 32, 32, device=device)
labels = torch.randint(10, ({BATCH},), device=device)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    float(loss.detach())
train({STEPS} // 5)
dist.barrier()
began = time.perf_counter()
train({STEPS})
if dist.get_rank() == 0:
    print(f"throughput {{{STEPS} / (time.perf_counter() - began):.3f}}")
"""
SCRIPT = f"""
import torch
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.distributed.init_process_group("gloo")
{TRAIN}
torch.distributed.destroy_process_group()
time.sleep(0.3)  # gloo's threads let go of their last work; while Python ends, they would abort
"""
RAISE = f"""
if rank == 1:
    time.sleep(0.3)
    raise ValueError(f"at={{time.monotonic():.4f}}")
{WAIT}
"""
LOG = """
loss = torch.zeros((), device=device)
taken = []
for _ in range(6):
    began = time.perf_counter()
    for _ in range(1000): nbdist.log(loss=loss)
    taken.append((time.perf_counter() - began) * 1e3)
    time.sleep(0.3)
print("each", *taken[1:])
"""


def spread(values: list[float], digits: int = 2) -> str:
    """Write a median and the range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def test_an_empty_cell(ranks: Kernel, start_kernel: KernelFactory, figure: Figure) -> None:
    plain = start_kernel()
    ratios, mine, bare = [], 0.0, 0.0
    for turn in range(TURNS + 1):
        bare = _median(lambda: plain.run("pass"))
        mine = _median(lambda: on_ranks(ranks, "pass"))
        if turn:
            ratios.append(mine / bare)
    figure(
        "an empty cell on 2 ranks over a plain kernel's",
        f"{spread(ratios)}x; the last turn {1e3 * mine:.1f} ms over {1e3 * bare:.1f} ms",
    )
    assert REHEARSAL or statistics.median(ratios) < 10


def _median(run: Callable[[], Cell]) -> float:
    return statistics.median(run().seconds or 0.0 for _ in range(CELLS))


def test_throughput_of_ddp(ranks: Kernel, tmp_path: Path, figure: Figure) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ours, theirs = [], []
    for _ in range(1 if REHEARSAL else 3):
        ours.append(_throughput(on_ranks(ranks, TRAIN).text))
        theirs.append(_throughput(_torchrun(script)))
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    figure(
        "DDP steps/s on 2 ranks over torchrun's, the same code on the same GPU",
        f"{spread(ratios)}x; {spread(ours, 1)} over {spread(theirs, 1)} steps/s",
    )
    assert REHEARSAL or max(ratios) > 0.7
    on_ranks(ranks, "del net, optimizer, images, labels, train")


def _torchrun(script: Path) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ran = subprocess.run(
        [*command, "--nproc-per-node", RANKS, str(script)],
        env={**os.environ, "TMPDIR": str(script.parent), **({} if REHEARSAL else first_gpu())},
        cwd=script.parent, capture_output=True, text=True, timeout=allowed(80), check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def _throughput(text: str) -> float:
    found = re.findall(r"throughput ([\d.]+)", text)
    assert found, text
    return float(found[-1])


def test_from_a_fault_to_the_next_step(ranks: Kernel, figure: Figure) -> None:
    on_ranks(ranks, DDP)
    seconds = []
    for _ in range(2 if REHEARSAL else 5):
        raised = re.search(r"at=([\d.]+)", fails(ranks, RAISE).text)
        assert raised is not None
        after = on_ranks(ranks, "step()\nprint(f'{time.monotonic():.4f}')").stdout
        seconds.append(float(after) - float(raised[1]))
    figure(
        "from a rank's exception, the other in all_reduce, to the end of the next cell's "
        "optimizer step",
        f"{spread(seconds)} s",
    )
    assert max(seconds) < allowed(SECONDS)


def test_a_call_of_log(ranks: Kernel, figure: Figure) -> None:
    said = on_ranks(ranks, LOG).stdout
    taken = [float(word) for word in said.split()[1:]]
    figure(f"a call of nbdist.log with a scalar on {NAME}", f"{spread(taken, 1)} us")
    assert REHEARSAL or statistics.median(taken) < 500
