"""`%dist sync` of what is not the same thing on all ranks: it is named, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.hub.asking.syncing import _difference
from tests.helpers.notebook import on_ranks, preload_without_trial

if TYPE_CHECKING:
    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

BEGIN = """
import copy, torch, torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
def one_of(*things): return things[rank]
def values(thing): return [each.tolist() for each in thing.state_dict().values()]
"""
UNLIKE = {
    "nn.Linear(2, 2, dtype=one_of(torch.float32, torch.float64))":
        "`weight` is float32 (2, 2) on rank 0 and float64 (2, 2) on rank 1 (the first of 2 "
        "differences)",
    "nn.Linear(2, 2, dtype=one_of(torch.float32, torch.bfloat16))":
        "`weight` is float32 (2, 2) on rank 0 and bfloat16 (2, 2) on rank 1 (the first",
    "nn.Embedding(3 + rank, 2)": "`weight` is float32 (3, 2) on rank 0 and float32 (4, 2) on",
    "nn.Sequential(*[nn.Linear(1, 1) for _ in range(2 - rank)])":
        "`1` is of type Linear on rank 0 and missing on rank 1",
    "nn.Sequential(nn.Linear(1, 1), one_of(nn.ReLU, nn.GELU)())":
        "`1` is of type ReLU on rank 0 and of type GELU on rank 1",
    "nn.BatchNorm1d(2, track_running_stats=rank == 1)":
        "`running_mean` is missing on rank 0 and float32 (2,) on rank 1",
    "one_of(nn.Linear(2, 2), 5)": "`thing` is of type Linear on rank 0 and of type int on rank 1",
    "one_of(nn.Linear, nn.LazyLinear)(*one_of((2, 2), (2,)))":
        "`thing` is of type Linear on rank 0 and of type LazyLinear on rank 1",
    "nn.Linear(2, 2, device=one_of('cpu', 'meta'))":
        "`weight` is float32 (2, 2) on rank 0 and float32 (2, 2) on the device meta on rank 1",
    "nn.Embedding.from_pretrained(one_of(torch.eye(2), torch.eye(2).to_sparse()))":
        "`weight` is float32 (2, 2) on rank 0 and float32 (2, 2) in the layout sparse_coo on",
    "torch.zeros(2 + rank)": "`thing` is float32 (2,) on rank 0 and float32 (3,) on rank 1",
    "one_of(optim.Adam, optim.SGD)([torch.zeros(2)])":
        "`thing` is of type Adam on rank 0 and of type SGD on rank 1",
    "optim.Adam([torch.zeros(2 + rank)])":
        "`parameter 0 of group 0` is float32 (2,) on rank 0 and float32 (3,) on rank 1",
    "optim.SGD([{'params': [torch.zeros(1)]} for _ in range(1 + rank)])":
        "`parameter 0 of group 1` is missing on rank 0 and float32 (1,) on rank 1",
    "optim.lr_scheduler.StepLR(optim.SGD([torch.zeros(1)]), 3) if rank else "
    "optim.lr_scheduler.LinearLR(optim.SGD([torch.zeros(1)]))":
        "`thing` is of type LinearLR on rank 0 and of type StepLR on rank 1",
    "torch.amp.GradScaler('cpu', enabled=rank == 1)":
        "`thing` is of type GradScaler and disabled on rank 0 and of type GradScaler and enabled",
}  # fmt: skip
"""Things that differ between ranks, each with how they differ."""
REFUSED = {
    "nn.LazyLinear(2)": "its `weight` has no values yet",
    "nn.Linear(2, 2, device='meta')": "its `weight` has no values yet",
    "torch.zeros(2).expand(3, 2)": "it is an expanded view, whose elements share memory",
    "['no', 'model']": "only models, optimizers, schedulers, gradient scalers and tensors can be "
    "made equal on all ranks, not a list",
}
"""Things that are alike on all ranks and cannot be sent."""


@pytest.fixture(scope="module")
def two(start_shared: KernelFactory) -> Kernel:
    """Return a kernel with two ranks, which hold things that differ."""
    kernel = start_shared()
    preload_without_trial(kernel, "torch._dynamo")
    on_ranks(kernel, BEGIN, "-np 2")
    return kernel


def test_what_differs_is_named_with_both_sides_and_left_alone(two: Kernel) -> None:
    everything = [*UNLIKE, *REFUSED]
    on_ranks(
        two,
        f"things = [{', '.join(everything)}]\n"
        "def state(): return repr([getattr(one, 'state_dict', lambda: one)() for one in things])\n"
        "before = state()\ngroup = dist.group.WORLD\n"
        "from nbdist.backends.ddp import rank_group\n"
        "generation = rank_group.current._generation",
    )
    for place, what in enumerate(everything):
        path = f"things[{place}]"
        why = (UNLIKE | REFUSED)[what].replace("`thing`", f"`{path}`")
        told = two.run(f"%dist sync {path}", check=False).error
        assert f"`{path}` was not synced, and nothing was changed: {why}" in told, what
    after = """
        total = torch.ones(1)
        dist.all_reduce(total)
        print(state() == before, int(total), rank_group.current._generation == generation)
    """
    assert on_ranks(two, after, "--output all").text.count("True 2 True") == 2
    on_ranks(two, "del things")


def test_what_is_alike_in_another_way_is_copied_rightly(two: Kernel) -> None:
    """A wrapper on one rank, another order of parts, another memory format, any dtype."""
    on_ranks(two, """
        def filled(thing):
            for each in thing.state_dict().values(): each.fill_(3 + rank)
            return thing
        m = filled(nn.Linear(2, 2))
        wrapped = DDP(copy.deepcopy(m)) if rank == 0 else DDP(m).module
        inner = m if rank == 0 else torch.compile(m, backend="eager")
        group = dist.new_group([0, 1])
        apart = DDP(copy.deepcopy(m), process_group=group) if rank == 0 else DDP(
            m, process_group=group).module
        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                for name in one_of("ab", "ba"):
                    self.register_parameter(name, nn.Parameter(torch.full((2,), ord(name) + rank)
                        .float()))
        turned = Turned()
        pictures = torch.arange(16.).view(1, 2, 2, 4) + rank
        if rank: pictures = pictures.contiguous(memory_format=torch.channels_last)
        kinds = nn.ParameterList([
            nn.Parameter(torch.full((3,), 1 + rank).to(kind), requires_grad=False)
            for kind in (torch.bool, torch.uint16, torch.complex64, torch.float8_e4m3fn)
        ])
        adam = optim.Adam(m.parameters(), amsgrad=rank == 0)
        if rank == 0: m(torch.ones(1, 2)).sum().backward(); adam.step()
        filled(wrapped), filled(inner), filled(apart)
    """)  # fmt: skip
    names = "wrapped inner apart turned pictures kinds adam"
    said = two.run(f"%dist sync {names} --from 0").text
    assert said.count("is now on all ranks as it was on rank 0") == len(names.split())
    now = """
        print(values(wrapped), values(inner) == values(apart), turned.a.tolist(),
            turned.b.tolist(), pictures.flatten().tolist() == list(range(16)),
            [each.to(torch.complex64).real.tolist() for each in kinds],
            adam.state[next(m.parameters())]["step"], adam.param_groups[0]["amsgrad"])
    """
    every = (
        "[[[3.0, 3.0], [3.0, 3.0]], [3.0, 3.0]] True [97.0, 97.0] [98.0, 98.0] True "
        f"{[[1.0] * 3] * 4} tensor(1.) True"
    )
    assert on_ranks(two, now, "--output all").text.count(every) == 2


def test_sides_are_told_from_the_source() -> None:
    told = {rank: {"": "ab"[rank == 1], "w": "x" * rank} for rank in range(3)}
    assert _difference("net", 0, told) == "`net` is a on ranks 0,2 and b on rank 1"
    assert _difference("net", 1, told) == "`net` is b on rank 1 and a on ranks 0,2"
    assert _difference("net", 1, dict.fromkeys(range(3), told[1])) == ""
