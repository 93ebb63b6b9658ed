"""Cells as scripts and series of sizes, two ranks on one GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.gpu.machine import NAME
from tests.gpu.models import DDP
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

TRAIN = f"""{DDP}
torch.manual_seed(rank)
for _ in range(5): step()
mine = torch.cat([p.detach().flatten() for p in model.parameters()])
theirs = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(theirs, mine)
print(dist.get_backend(), device, torch.equal(*theirs))
"""
SERIES = """
import torch, torch.distributed as dist
weight = torch.ones(8, device=device, requires_grad=True)
for _ in nbdist.progress(range(30), "train", samples=4):
    loss = (torch.randn(4, 8, device=device) @ weight).square().mean()
    (grad,) = torch.autograd.grad(loss, weight)
    dist.all_reduce(grad)  # by hand: for DDP each new rank would import for seconds
    weight.data -= 0.01 * grad / world_size
print("trained on", world_size)
"""


@pytest.mark.parametrize("how", ["", "--cold"], ids=["warm", "cold"])
def test_torchrun_trains(one_gpu: Kernel, how: str) -> None:
    flags = f"-np 2 --launcher torchrun {how} --output all"
    told = on_ranks(one_gpu, TRAIN, flags, timeout=90).stdout
    # Between them torch warns, where a machine has no network.
    found = sorted(re.findall(r"^\[\d\] (?:gloo|nccl) .*", told, re.MULTILINE))
    assert found == [f"[{rank}] gloo {NAME} True" for rank in (0, 1)]


def test_a_series_of_sizes_has_its_table(one_gpu: Kernel) -> None:
    on_ranks(one_gpu, "pass", "-np 2 --launcher engines")
    cell = on_ranks(one_gpu, SERIES, "--scale 1,2", timeout=90)
    assert re.findall(r"trained on (\d)", cell.stdout) == ["1", "2"]
    asked = "for row in nbdist.jobs()[-1].scaling: print(row.ranks, bool(row.samples_per_second))"
    assert one_gpu.run(asked).stdout == "1 True\n2 True\n"
