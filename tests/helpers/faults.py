"""Models, faults in their training, and the check that the training goes on afterwards."""

from __future__ import annotations

import re
import time
from textwrap import dedent
from typing import TYPE_CHECKING

from tests.helpers.notebook import distributed, plain
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

SECONDS = 10.0
"""The limit from a fault to the cell's end on an idle machine; gloo would wait for minutes."""

_BEGIN = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
"""
_STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def step():
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8)) - torch.randn(4, 1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())
"""
_LAYERS = "torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))"
_FSDP = f"""
from torch.distributed.fsdp import fully_shard
model = {_LAYERS}
for layer in model:
    fully_shard(layer)
fully_shard(model)
"""

PLAIN = f"""{_BEGIN}
model = optimizer = None
def step():
    total = torch.ones(4) * (rank + 1)
    dist.all_reduce(total)
    return float(total[0])
"""
MODELS = {
    "plain": PLAIN,
    "ddp": f"{_BEGIN}\nmodel = DDP({_LAYERS})\n{_STEP}",
    "subgroup": f"{_BEGIN}\npair = dist.new_group([0, 1])\n"
    f"model = DDP({_LAYERS}, process_group=pair)\n{_STEP}",
    "fsdp": f"{_BEGIN}\n{_FSDP}\n{_STEP}",
}
"""Cells that make a model, its optimizer and `step()` on two ranks."""

BOOM = "raise ValueError(f'boom on 1, at={time.monotonic():.3f}')"
BOOM_IN_BACKWARD = f"""
class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g):
        if rank == 1: {BOOM}
        return g
"""
"""`Boom.apply` returns its argument, and raises on rank 1 in the backward pass."""
TRAIN = """
def numbers():
    parts = [getattr(p, "to_local", lambda p=p: p)() for p in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts])
losses = []
if model is not None:
    before = numbers()
for _ in range(3):
    losses.append(step())
if model is not None:
    assert all(loss == loss for loss in losses), losses
    assert not torch.equal(before, numbers()), "nothing was learned"
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}, "the optimizer has lost the model"
if isinstance(model, DDP):
    mine = numbers()
    theirs = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(theirs, mine, group=model.process_group)
    assert torch.equal(*theirs), "the ranks have parted"
print("trained", len(losses))
"""


LOST = re.compile(
    r"Rank 1 was killed by SIGKILL( at cell line \d+)?; "
    r"the job (goes on if enough ranks are left|has ended without it)\."
)
"""How an elastic job reports that one of its ranks was killed, with the line if it is known."""


def shown(cell: Cell) -> str:
    """Return all that a cell has shown, without colours."""
    return plain(cell.seen())


DEAF = """
    if rank == 1:
        dist.irecv(torch.zeros(3), src=0)  # the returned handle is dropped
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(3), dst=1)
    waits = dist.all_reduce(torch.ones(2), async_op=True)
"""
"""After this code gloo on rank 1 gets nothing more from rank 0, and both ranks wait forever."""


def stopped_by_button(kernel: Kernel, body: str, settle: float, limit: float = SECONDS) -> Cell:
    """Press stop `settle` seconds after a cell has begun on both ranks; return the cell."""
    kernel.start(distributed("print('in', flush=True)\n" + dedent(body), "--output all"))
    for rank in (0, 1):
        kernel.expect(f"[{rank}] in\n")
    time.sleep(settle)  # a stop on the way into a collective works, too, but is rarer
    pressed = time.monotonic()
    kernel.interrupt()
    stopped = kernel.wait(20)
    ended_in_time(stopped, pressed, limit)
    assert "The cell was interrupted" in shown(stopped)
    assert "Traceback" not in stopped.text
    assert "was killed" not in shown(stopped), shown(stopped)
    return stopped


def ended_in_time(cell: Cell, fault: float | None = None, limit: float = SECONDS) -> None:
    """Check that a cell ended soon after a fault, by default after the time in its text (``at=``).

    Times are ``time.monotonic()``, which all processes of a machine share.
    """
    assert cell.seconds is not None
    if fault is None:
        stamps = re.findall(r"at=(\d+\.\d+)", cell.text)
        assert stamps, cell.seen()
        fault = float(stamps[0])
    took, limit = cell.sent + cell.seconds - fault, allowed(limit)
    assert took < limit, f"{took:.2f} s, not {limit:.2f}\n{cell.seen()}"


def fails(kernel: Kernel, body: str, flags: str = "") -> Cell:
    """Run a cell that must fail."""
    failed = kernel.run(distributed(body, flags), check=False)
    assert not failed.ok, failed.seen()
    return failed


def trains_on(kernel: Kernel, failed: Cell) -> None:
    """Check that the kept model and optimizer take steps in place, and that the ranks agree.

    If the failed cell reported that they differ, the command that it named must make them agree.
    """
    told = re.search(r"`(%dist sync [^`]+ --from 0)` makes them equal", failed.text)
    if told:
        kernel.run(told[1])
    assert "trained 3" in kernel.run(distributed(TRAIN)).text
