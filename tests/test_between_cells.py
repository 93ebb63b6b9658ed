"""What lives between two cells outlives a mistake in a cell between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import fails, shown
from tests.helpers.notebook import on_ranks, preload_training, printed_by

if TYPE_CHECKING:
    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

BEGIN = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): raise ValueError("boom")
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(2)])
    def forward(self, x, n): return self.parts[n](x)
def same(value):
    told = [None] * world_size
    dist.all_gather_object(told, value)
    return len({str(each) for each in told}) == 1
begun_with = {*globals(), "begun_with"}
"""
FORGET = """
for name in [name for name in globals() if name not in begun_with and not name.startswith("_")]:
    del globals()[name]
torch.manual_seed(0)
"""
MISTAKES = {
    "a name": "los",
    "a name on one rank": "if rank == 1: los",
    "after a collective": "dist.all_reduce(torch.ones(2))\n1 / 0",
    "in a new group": "dist.all_reduce(torch.ones(2), group=dist.new_group())\n1 / 0",
    "while the other ranks work": "if rank == 0: time.sleep(0.1)\nelse: los",
}
"""Each breaks nothing."""
CUT = "if rank == 1: los\ndist.all_reduce(torch.ones(2))"
"""Rank 0 is freed from this collective, so the groups are renewed."""
BROKEN = "out = other(torch.ones(1, 1))\n(Boom.apply(out) if rank == 1 else out).sum().backward()"
"""It breaks off a backward pass of a model `other`, so this model is renewed."""


@pytest.fixture(scope="module")
def _notebook(start_shared: KernelFactory) -> Kernel:
    kernel = start_shared()
    preload_training(kernel)
    on_ranks(kernel, BEGIN, "-np 2")
    return kernel


@pytest.fixture
def two(_notebook: Kernel) -> Kernel:
    """Return a kernel with two ranks, which have nothing of other tests."""
    on_ranks(_notebook, FORGET)
    return _notebook


@pytest.mark.parametrize(
    "mistake", [*MISTAKES.values(), CUT, BROKEN], ids=[*MISTAKES, "cut", "another model's backward"]
)
def test_a_pending_backward_pass_is_reduced(two: Kernel, mistake: str) -> None:
    on_ranks(two, """
        kinds = [{}, {"find_unused_parameters": True}, {"static_graph": True},
                 {"gradient_as_bucket_view": True}, {"static_graph": True}]
        other, *models = [DDP(nn.Linear(1, 1, bias=False), **kind) for kind in [{}, *kinds]]
        def loss(n=5): return sum((m(torch.ones(1, 1)) * (rank + 1)).sum() for m in models[:n])
        for n in (4, 5): loss(n).backward()  # the last one has formed no buckets yet
        for m in models: m.zero_grad()
        pending = loss()
    """)  # fmt: skip
    told = shown(fails(two, mistake))
    assert "equal" not in told, told
    assert "lost" not in told, told
    on_ranks(two, "pending.backward()\nprint([m.module.weight.grad.item() for m in models])")
    for rank in (0, 1):
        assert printed_by(two, rank) == "[1.5, 1.5, 1.5, 1.5, 1.5]\n"


def test_what_a_reducer_knows_of_earlier_passes_stays(two: Kernel) -> None:
    on_ranks(two, """
        from torch.utils.checkpoint import checkpoint
        x = torch.ones(1, 1) * (rank + 1)
        class Again(nn.Linear):
            def forward(self, x): return checkpoint(super().forward, x, use_reentrant=True)
        def linear(kind=nn.Linear): return DDP(kind(1, 1, bias=False))
        other, hidden, apart, around, again = linear(), linear(Again), linear(), linear(), linear()
        parts = DDP(Two(), find_unused_parameters=True)
        losses = [hidden(x.clone().requires_grad_()), around.module(x), again(x)]
        with apart.no_sync(): losses.append(apart(x))
        losses[2].backward(retain_graph=True); again.zero_grad()
        with parts.no_sync(): parts(x, 0).backward()
    """)  # fmt: skip
    fails(two, BROKEN)
    on_ranks(two, """
        for loss in losses: loss.backward()
        parts(x, 1).backward()
        models = hidden, apart, around, again, *parts.module.parts
        print([next(model.parameters()).grad.item() for model in models])
    """)  # fmt: skip
    assert printed_by(two, 0) == "[1.5, 1.0, 1.0, 1.0, 1.5, 1.5]\n"
    assert printed_by(two, 1) == "[1.5, 2.0, 2.0, 2.0, 1.5, 1.5]\n"


@pytest.mark.parametrize("end", ["pass", "own.zero_grad()"])
def test_a_model_whose_own_backward_broke_is_renewed(two: Kernel, end: str) -> None:
    on_ranks(two, """
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        own = DDP(Two(), find_unused_parameters=True)
        x = torch.ones(1, 1) * (rank + 1)
        def passes(state, bucket):
            future = torch.futures.Future()
            if broken: future.set_exception(ValueError("lost"))
            else: return default_hooks.allreduce_hook(None, bucket)
            return future
        own.register_comm_hook(None, passes)
        broken = True
    """)  # fmt: skip
    fails(two, f"try: own(x, 0).backward()\nfinally: {end}")
    on_ranks(two, """
        broken = False; own.zero_grad()
        own(x, 1).backward()
        print([part.weight.grad for part in own.module.parts])
    """)  # fmt: skip
    for rank in (0, 1):
        assert printed_by(two, rank) == "[None, tensor([[1.5000]])]\n"


@pytest.mark.parametrize(
    "mistake", [*MISTAKES.values(), CUT, BROKEN], ids=[*MISTAKES, "cut", "another model's backward"]
)
def test_accumulated_gradients_and_the_memory_of_hooks_stay(two: Kernel, mistake: str) -> None:
    on_ranks(two, """
        other = DDP(nn.Linear(1, 1, bias=False))
        sharded = nn.Linear(2, 2, bias=False); fully_shard(sharded)
        sharded.set_requires_gradient_sync(False); sharded(torch.ones(1, 2)).sum().backward()
        hooked = DDP(nn.Linear(8, 8))
        state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        hooked.register_comm_hook(state, power.powerSGD_hook)
        for _ in range(4): hooked(torch.ones(1, 8) * (rank + 1)).pow(2).sum().backward()
        kept = state.iter, len(state.error_dict)
    """)  # fmt: skip
    fails(two, mistake)
    on_ranks(two, """
        sharded.set_requires_gradient_sync(True); sharded(torch.ones(1, 2)).sum().backward()
        still = kept == (state.iter, len(state.error_dict))
        print(sharded.weight.grad.full_tensor()[0].tolist(), still)
    """)  # fmt: skip
    for rank in (0, 1):
        assert printed_by(two, rank) == "[2.0, 2.0] True\n"


@pytest.mark.parametrize("mistake", [CUT, BROKEN], ids=["cut", "another model's backward"])
def test_a_pending_pass_of_a_sharded_model_is_reduced(two: Kernel, mistake: str) -> None:
    on_ranks(two, """
        other, sharded = DDP(nn.Linear(1, 1, bias=False)), nn.Linear(2, 2, bias=False)
        fully_shard(sharded)
        pending = sharded(torch.ones(1, 2) * (rank + 1)).sum()
    """)  # fmt: skip
    assert "divided" in two.run("%dist sync sharded", check=False).error
    told = shown(fails(two, mistake))
    assert "lost" not in told, told
    on_ranks(two, "pending.backward()\nprint(sharded.weight.grad.full_tensor()[0].tolist())")
    for rank in (0, 1):
        assert printed_by(two, rank) == "[1.5, 1.5]\n"


def test_a_scaler_goes_on_where_an_earlier_cell_left_it(two: Kernel) -> None:
    on_ranks(two, """
        p = nn.Parameter(torch.zeros(1)); sgd = torch.optim.SGD([p], lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale((p * 3).sum()).backward(); scaler.unscale_(sgd)
    """)  # fmt: skip
    for mistake in (MISTAKES["a name"], CUT):
        fails(two, mistake)
    on_ranks(two, "scaler.step(sgd)\nprint(p.item())")
    assert two.cell.stdout == "-3.0\n"
    for mistake in (MISTAKES["a name"], CUT):
        fails(two, mistake)
    on_ranks(two, """
        scaler.update(); p.grad = None
        scaler.scale((p * float("inf")).sum()).backward(); scaler.step(sgd)
        print(p.item())
    """)  # fmt: skip
    assert two.cell.stdout == "-3.0\n"
    fails(two, "los")
    on_ranks(two, "scaler.update(); print(scaler.get_scale())")
    assert two.cell.stdout == "512.0\n", "what it had found is kept"


def test_a_scaler_whose_step_was_broken_off_begins_again(two: Kernel) -> None:
    on_ranks(two, """
        p = nn.Parameter(torch.zeros(1))
        class SGD(torch.optim.SGD):
            breaks = False
            def _init_group(self, *args, **options):
                if self.breaks: raise ValueError("broken")
                return super()._init_group(*args, **options)
        sgd = SGD([p], lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    """)  # fmt: skip
    begun = "scaler.scale((p * 3).sum()).backward(); scaler.unscale_(sgd)\n"
    for step in (f"sgd.breaks = True\n{begun}scaler.step(sgd)", begun + CUT):
        fails(two, step)
        on_ranks(two, f"sgd.breaks, p.grad, p.data = False, None, torch.zeros(1)\n{begun}")
        on_ranks(two, "scaler.step(sgd); scaler.update(); print(p.item())")
        assert two.cell.stdout == "-3.0\n", step


def test_what_a_broken_step_takes_along_is_named(two: Kernel) -> None:
    on_ranks(two, """
        sharded = nn.Linear(2, 2, bias=False); fully_shard(sharded)
        sharded.set_requires_gradient_sync(False); sharded(torch.ones(1, 2)).sum().backward()
        class Broken(nn.Module):
            breaks = False
            def forward(self, x): return Boom.apply(x) if self.breaks else x
        hooked = DDP(nn.Sequential(nn.Linear(8, 8), Broken(), nn.Linear(8, 8)))
        state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        hooked.register_comm_hook(state, power.powerSGD_hook)
        for _ in range(4): hooked(torch.ones(1, 8)).pow(2).sum().backward()
    """)  # fmt: skip
    told = shown(fails(two, "Broken.breaks = True\nhooked(torch.ones(1, 8)).sum().backward()"))
    assert "`hooked` has lost the memory of its PowerSGD hook" in told, told
    assert "`sharded`" not in told, told
    told = shown(fails(two, "sharded(Boom.apply(sharded(torch.ones(1, 2)))).sum().backward()"))
    assert (
        "`sharded` has lost the gradients that it had accumulated, because its step was broken off:"
        " begin the step again." in told
    ), told


def test_a_torn_or_half_done_collective_is_not_taken_for_whole(two: Kernel) -> None:
    for body in (
        "work = dist.all_reduce(torch.ones(2), async_op=True) if rank else None\n1 / 0",
        "dist.broadcast(torch.ones(2), 0) if rank == 0 else None\n1 / 0",
        "if rank == 0: dist.send(torch.ones(1), 1)\n1 / 0",
        "g = dist.new_group([0]) if rank == 0 else None\n1 / 0",
        "try: dist.all_reduce(torch.ones(3 - rank))\nexcept RuntimeError: pass\n1 / 0",
    ):
        fails(two, body)
        on_ranks(two, """
            total = torch.tensor([rank + 1.0]); dist.all_reduce(total)
            told = torch.tensor([7.0 + rank]); dist.broadcast(told, 1)
            print(total.item(), told.item())
        """)  # fmt: skip
        for rank in (0, 1):
            assert printed_by(two, rank) == "3.0 8.0\n", body


def test_only_what_was_equal_is_said_to_have_parted(two: Kernel) -> None:
    on_ranks(two, """
        model = DDP(nn.Linear(4, 4)); sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank); expert = nn.Linear(4, 4)
        adam = torch.optim.Adam(expert.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam)
        def step(boom=False):
            for net, optimizer in ((model, sgd), (expert, adam)):
                optimizer.zero_grad(); net(torch.ones(1, 4)).pow(2).sum().backward()
                if boom and rank == 1: raise ValueError("boom")
                optimizer.step()
            plateau.step(float(rank))
        step()
    """)  # fmt: skip
    for mistake in ("los", "step()\nlos", "if rank == 1: los", CUT, f"step()\n{CUT}"):
        assert "equal" not in shown(fails(two, mistake)), mistake
    told = shown(fails(two, "step(boom=True)\ndist.barrier()"))
    assert "a step: `model`. `%dist sync model --from 0` makes them equal." in told, told
    assert "equal" not in shown(fails(two, "los")), "it was said"


def test_a_cell_on_some_ranks_says_nothing_of_the_steps_before(two: Kernel) -> None:
    on_ranks(two, """
        net = nn.Linear(8, 8); fully_shard(net)
        opt = torch.optim.Adam(net.parameters(), fused=True)
        net(torch.ones(4, 8)).sum().backward(); opt.step()
    """)  # fmt: skip
    told = shown(fails(two, "los", "--ranks 1"))
    assert "different steps" not in told, told


def test_an_optimizer_of_the_users_own_class_travels(two: Kernel) -> None:
    on_ranks(two, """
        class Mine(torch.optim.SGD): pass
        net = DDP(nn.Linear(8, 8)); opt = Mine(net.parameters(), lr=0.1)
        net(torch.ones(4, 8)).sum().backward(); opt.step()
    """)  # fmt: skip
    told = shown(two.run("%dist restart 1 --like 0"))
    assert "nothing is missing" in told, told


def test_shards_of_different_steps_are_said_once_and_fused_ones_too(two: Kernel) -> None:
    on_ranks(two, """
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)); fully_shard(net)
        opt = torch.optim.Adam(net.parameters(), fused=True)
        def step(boom=False):
            net(torch.ones(4, 8)).sum().backward()
            if boom and rank == 1: raise ValueError("boom")
            opt.step(); opt.zero_grad()
        step()
    """)  # fmt: skip
    told = shown(fails(two, "step(boom=True); dist.barrier()"))
    assert "The ranks' shards are of different steps: `net`, `opt`." in told, told
    for later in (CUT, f"step()\n{CUT}"):
        assert "different steps" not in shown(fails(two, later)), later
    on_ranks(two, """
        from torch.distributed.optim import ZeroRedundancyOptimizer
        model = DDP(nn.Linear(8, 8))
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
        def step(): model(torch.ones(4, 8)).sum().backward(); zero.step()
        step()
    """)  # fmt: skip
    told = shown(fails(two, "step()\nif rank == 1: los\nzero.optim.step()\ndist.barrier()"))
    assert "The ranks' shards are of different steps: `zero`." in told, told
    for later in ("if rank == 1: los", CUT):
        assert "`zero`" not in shown(fails(two, later)), later
