"""Models for two ranks on whatever device they have, and the check that they train on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.helpers.faults import TRAIN, shown
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

_BEGIN = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
).to(device)
"""
_STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def step(through=lambda x: x):
    optimizer.zero_grad()
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 1, device=device)
    loss = (through(model(x)) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())
"""
DDP = f"{_BEGIN}\nmodel = DDP(model)\n{_STEP}\nfirst = step()"
FSDP = f"""{_BEGIN}
from torch.distributed.fsdp import fully_shard
for layer in model:
    fully_shard(layer)
fully_shard(model)
{_STEP}
first = step()
"""
WAIT = "total = torch.ones(2, device=device)\ndist.all_reduce(total)\nfloat(total.sum())"
"""Lines that wait for the other rank, also under nccl, where a collective is only queued."""
NOW = "print(f'at={time.monotonic():.3f}', flush=True)"
"""What rank 0 runs at the time of a fault."""


def goes_on(kernel: Kernel, failed: Cell) -> None:
    """Check that the kept model takes steps, and that the ranks are equal.

    Where the failed cell told that they may not be, what it told to do must make them.
    """
    for told in dict.fromkeys(re.findall(r"`(%dist sync [^`]+ --from \d+)`", shown(failed))):
        kernel.run(told)
    assert "trained 3" in on_ranks(kernel, TRAIN).text
