"""A rank that got the variables of another one, or the notebook's, has its own part of the data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DistributedSampler, TensorDataset

from nbdist.rank.values import rank_marks
from nbdist.rank.values.rank_marks import Place
from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

DATA, THREE = TensorDataset(torch.arange(8)), TensorDataset(torch.arange(3))


@pytest.fixture(scope="module")
def three(start_shared: KernelFactory) -> Kernel:
    """Return a kernel with three ranks."""
    kernel: Kernel = start_shared()
    kernel.run("%load_ext nbdist")
    on_ranks(
        kernel,
        """
        import os, random
        import torch, torch.distributed as dist
        from torch.utils.data import *
        data = TensorDataset(torch.arange(12))
        """,
        "-np 3",
    )
    return kernel


def test_a_rank_made_like_another_has_its_own_part_of_the_data(three: Kernel) -> None:
    on_ranks(
        three,
        """
        class Mine(DistributedSampler): pass
        loaders = [
            DataLoader(data, 2, sampler=Mine(data, shuffle=False)),
            DataLoader(data, batch_sampler=BatchSampler(DistributedSampler(data), 2, False)),
        ]
        every = [DistributedSampler(data, 3, r) for r in range(3)]
        my_rank, is_main, lora_rank = rank, rank == 0, 0
        if rank == 1: os.kill(os.getpid(), 9)
        """,
        check=False,
    )
    told = three.run("%dist restart 1 --like 0").stdout
    right = re.findall(r"^Set for rank 1, as the copy had rank 0's: (.*)\.$", told, re.MULTILINE)
    assert right == [
        "is_main, my_rank, loaders[0].sampler.rank, loaders[1].batch_sampler.sampler.rank"
    ], told
    assert "meant to differ" not in told
    three.run("%dist restart 2 --like 1")
    on_ranks(
        three,
        """
        assert [b.tolist() for b, in loaders[0]] == [[rank, rank + 3], [rank + 6, rank + 9]]
        assert loaders[1].batch_sampler.sampler.rank == rank
        assert [one.rank for one in every] == [0, 1, 2]
        assert (my_rank, is_main, lora_rank) == (rank, rank == 0, 0)
        del loaders, every, my_rank, is_main, lora_rank
        """,
    )


def test_what_differs_on_purpose_is_named_and_what_is_equal_is_not(three: Kernel) -> None:
    on_ranks(
        three,
        """
        class Shards(IterableDataset):
            def __init__(self): self.rank = dist.get_rank()
            def __iter__(self): return iter(range(self.rank, 12, 3))
        def of(rank): return lambda: rank
        shards, part, told = Shards(), Subset(data, range(rank, 12, 3)), of(rank)
        half = Subset(data, range(6))
        own, common = torch.Generator().manual_seed(rank), torch.Generator().manual_seed(1)
        py, fixed_seed = random.Random(rank), 5
        args = {"rank": rank, "lr": 1, "seed": rank}
        loss, mean, epochs = torch.rand(1), 0.5 + rank, 3
        class Listed(Sampler):
            def __init__(self, own): self.own, self.files = own, ["a"] * 30_000
            def __iter__(self): return iter(self.own)
        listed = DataLoader(data, sampler=Listed([*range(rank * 50_000, (rank + 1) * 50_000)]))
        """,
    )
    told = three.run("%dist restart 2 --like 1").stdout
    named = re.findall("^Rank 2 now has rank 1's (.*), which may be meant", told, re.MULTILINE)
    paths = {*named[0].split(", ")}
    assert paths == {
        "own", "py", "part", "args['rank']", "args['seed']", "shards.rank", "listed.sampler",
        "told.__closure__[0].cell_contents",
    }, told  # fmt: skip
    assert "Set for" not in told
    on_ranks(three, "del shards, part, told, own, py, args, listed")
    quiet = three.run("%dist restart 2 --like 1").stdout
    assert quiet.count("\n") == 2, quiet
    on_ranks(three, "folder, ends, mine = f'out/{rank}', (rank * 4, rank * 4 + 4), 7 * rank")
    plain = three.run("%dist restart 2 --like 1").stdout
    assert "Rank 2 now has rank 1's ends, folder, mine, which may be meant" in plain
    on_ranks(three, "del folder, ends, mine")


def test_samplers_of_the_notebook_are_for_each_rank(three: Kernel) -> None:
    three.run("""
        from torch.utils.data import DataLoader, DistributedSampler
        three = DataLoader(range(6), 2, sampler=DistributedSampler(range(6), 3, 0, shuffle=False))
        one = DistributedSampler(range(6), 1, 0, shuffle=False)
    """)
    cell = shown(on_ranks(three, "assert three.sampler.rank == rank and len(list(one)) == 6"))
    assert "Each rank has its own number as `three.sampler.rank`, not the notebook's." in cell
    assert "`one.rank` is the notebook's on every rank" in cell
    cell = shown(on_ranks(three, "assert three.sampler.rank == rank and len(list(one)) == 6"))
    assert "notebook's" not in cell
    told = three.run("%dist restart 1 --like 0").stdout
    assert "Set for rank 1, as the copy had rank 0's: three.sampler.rank." in told
    again = shown(on_ranks(three, "assert three.sampler.rank == rank"))
    assert not re.search("Brought|changed", again), again


def test_samplers_of_the_notebook_are_for_each_rank_of_a_script(three: Kernel) -> None:
    three.run("""
        from torch.utils.data import DataLoader, DistributedSampler
        class Mine(DistributedSampler): pass
        loaders = {"all": [DataLoader(range(6), sampler=Mine(range(6), 3, 0, shuffle=False))]}
        two = DistributedSampler(range(6), 2, 0, shuffle=False)
    """)
    ours = "[int(i) for i in loaders['all'][0]] == [rank, rank + 3]"
    cell = on_ranks(three, f"assert {ours} and two.rank == 0", "-np 3 --launcher torchrun")
    told = shown(cell)
    assert "Each rank has its own number as `loaders['all'][0].sampler.rank`, not" in told
    assert "`two.rank` is the notebook's on every rank" in told


class Unrepeated(DistributedSampler[Any]):
    """Counts its samples in advance, as Lightning's sampler does."""

    def __init__(self) -> None:
        super().__init__(THREE, 2, 0, shuffle=False)
        self.total_size, self.num_samples = 3, 2


def test_what_libraries_hold_is_put_right_and_what_a_users_class_made_is_not() -> None:
    few: Any = Unrepeated()
    Unrepeated.__name__, Unrepeated.__module__ = "UnrepeatedDistributedSampler", "lightning.x"
    state = type("PartialState", (), {"__module__": "accelerate.state"})()
    vars(state).update(process_index=0, local_process_index=0, num_processes=2)
    pair = type("Own", (), {})()
    pair.rank, pair.world_size = 0, 2
    of_two_of_four: dict[str, Any] = {"inside": (DistributedSampler(DATA, 2, 0),)}
    space = {"few": few, "state": state, "pair": pair, "usual": of_two_of_four}

    def can_be_set(size: int) -> set[str]:
        return {
            found.path
            for found in rank_marks.reached(space, space)
            if rank_marks.meaning(found) and rank_marks.can_be_set(found, space, size)
        }

    paths = {"few.rank", "state.process_index", "state.local_process_index"}
    paths.add("usual['inside'][0].rank")
    assert (can_be_set(2), can_be_set(4)) == (paths, set())
    rank_marks.put_right(space, [*space], paths, Place(1, 1, 2))
    assert (few.rank, few.num_samples, pair.rank) == (1, 1, 0)
    assert (state.process_index, of_two_of_four["inside"][0].rank) == (1, 1)


def test_long_lists_of_data_are_no_reason_to_overlook_a_sampler() -> None:
    space: dict[str, Any] = {f"documents{i}": [[0] * 500 for _ in range(1000)] for i in range(10)}
    space |= {f"records{i}": [{"text": "a", "tags": [1]} for _ in range(2000)] for i in range(20)}
    space["trainer"] = {"loader": [DistributedSampler(DATA, 2, 0)]}
    found = [each.path for each in rank_marks.reached(space, space)]
    assert "trainer['loader'][0].rank" in found
    assert len(found) < 20_000
