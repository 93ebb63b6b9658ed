"""Ranks that parted say so: whatever stopped them, wherever what they train is held."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import fails, shown
from tests.helpers.notebook import ANSWERS_LATE, distributed, on_ranks, preload_training
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

PARTED = re.compile(r"No longer equal on all ranks[^:]*: (.+?)\.\s")
LOST = re.compile(r"\[Cc\]onnection|INTERNAL ASSERT|GLHF")
BEGIN = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
def numbers(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])
def equal(model, group=None):
    mine = numbers(model)
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    return all(torch.equal(mine, other) for other in theirs)
def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8) * (rank + 1)).pow(2).mean().backward()
        optimizer.step()
"""


FORGET = """
for name in [name for name in globals() if name not in begun_with and not name.startswith("_")]:
    del globals()[name]
torch.manual_seed(0)
"""
"""What another test has trained is compared after each fault, too."""


@pytest.fixture(scope="module")
def with_three(start_shared: KernelFactory) -> Kernel:
    """Return a kernel with three ranks."""
    kernel = start_shared()
    preload_training(kernel)
    begin = f"{ANSWERS_LATE}\n{BEGIN}\nbegun_with = {{*globals(), 'begun_with'}}"
    on_ranks(kernel, begin, "-np 3")
    return kernel


@pytest.fixture
def three(with_three: Kernel) -> Kernel:
    """Return that kernel; its ranks have nothing of other tests."""
    on_ranks(with_three, FORGET)
    return with_three


def _unless_busy(told: str) -> str:
    return "" if "is busy" in told else told


def parted(cell: Cell) -> set[str]:
    found = PARTED.search(shown(cell))
    return set(re.findall(r"`([^`]+)`", found[1])) if found else set()


def test_what_is_trained_is_found_wherever_it_is_held_and_made_equal(three: Kernel) -> None:
    on_ranks(three, """
        class Trainer: pass
        trainer = Trainer()
        trainer.model = DDP(nn.Linear(8, 1))
        trainer.optimizer = torch.optim.Adam(trainer.model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2, 0.5)
        nets = [trainer.model, trainer.model.module]
        lazy = nn.LazyLinear(3)
        sparse = nn.ParameterList([nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)])
        class Odd(nn.Linear):
            def state_dict(self, *a, **k): raise ValueError("never")
        odd = Odd(2, 2)
        stage = nn.Linear(rank + 1, 1)
        def step(boom=False):
            trainer.optimizer.zero_grad()
            loss = trainer.model(torch.ones(4, 8) * (rank + 1)).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(trainer.optimizer)
            if boom and rank == 1: raise ValueError("boom")
            scaler.update()
            schedule.step()
        step()
    """)  # fmt: skip
    failed = fails(three, "step(boom=True)\ndist.barrier()")
    # All have stepped: what differs is what comes behind.
    assert parted(failed) == {"schedule", "scaler", "trainer.optimizer"}, shown(failed)
    assert "could not be compared" not in shown(failed)
    told = re.search(r"`(%dist sync .+?)` makes them equal", shown(failed))
    assert told
    three.run(told[1])
    after = on_ranks(three, "step()\nprint(equal(trainer.model), schedule.last_epoch)").text
    assert "True 3" in after
    failed = fails(three, "if rank == 1: step\nelse: train(nets[1], trainer.optimizer, 1)\n1 / 0")
    # By the shorter way of the two that lead to the model.
    assert parted(failed) == {"nets[0]", "trainer.optimizer"}, shown(failed)
    on_ranks(three, "del trainer, nets, schedule, scaler")


def test_what_cannot_be_compared_is_named_with_its_reason(three: Kernel) -> None:
    on_ranks(
        three,
        """
        model = nn.Linear(2, 2)
        class Strange(torch.optim.SGD):
            def state_dict(self): raise ValueError("never\\nagain")
        strange = Strange(model.parameters(), lr=0.1)
    """,
    )
    # Each rank has other names for it: those of one are not all of the others'.
    body = "if rank == 0: alike = model\nif rank == 1: nn.init.zeros_(model.weight)\n1 / 0"
    failed = fails(three, body)
    assert parted(failed) == {"model"}
    assert "`strange` could not be compared: ValueError: never." in shown(failed)
    on_ranks(three, "del model, strange")


def test_variables_that_cannot_be_looked_at_keep_nobody_from_being_renewed(three: Kernel) -> None:
    on_ranks(
        three,
        """
        import os, sys, weakref
        class Stubborn:
            def __getattribute__(self, name): raise ValueError(name)
        class Closed(dict):
            def __iter__(self): raise ValueError("never")
            __getitem__ = items = copy = __len__ = __iter__
        class Short(list):
            def __getitem__(self, index): raise ValueError("never")
        class Attributes:
            __dict__ = property(lambda self: 1 / 0)
        hostile = [Stubborn(), Closed(a=1), Short([2]), weakref.proxy(Closed()), Attributes()]
        stubborn, closed, short, gone, attributes = hostile
        class Dressed(dict): pass
        dressed = Dressed(inner=DDP(nn.Linear(2, 2)))
        """,
    )
    before = three.run("import nbdist\n[one.pid for one in nbdist.cluster().ranks]").text
    body = "if rank == 1: nn.init.zeros_(dressed['inner'].module.weight)\ndist.barrier()\n1 / 0"
    assert parted(fails(three, body)) == {"dressed['inner']"}
    assert three.run("import nbdist\n[one.pid for one in nbdist.cluster().ranks]").text == before
    on_ranks(three, "del hostile, stubborn, closed, short, gone, attributes, dressed")


def test_parameters_and_models_in_places_of_all_kinds_are_found_and_made_equal(
    three: Kernel,
) -> None:
    on_ranks(three, """
        import collections, functools
        torch.manual_seed(0)
        w = nn.Parameter(torch.zeros(2))
        trained_by_hand = torch.zeros(2, requires_grad=True)
        untrained = torch.zeros(2, requires_grad=True)
        by_hand = torch.optim.SGD([trained_by_hand], lr=0.1)
        class Slotted:
            __slots__ = ("net", "unbound")
        slotted = Slotted()
        slotted.net = nn.Linear(2, 2)
        places = {"a b": nn.Linear(2, 2)}
        parameters = [*places["a b"].parameters()]
        line = collections.deque([nn.Linear(2, 2)])
        part = functools.partial(print, nn.Linear(2, 2))
        bound = nn.Linear(2, 2).forward
        class Task:
            net = nn.Linear(2, 2)
        norm = nn.BatchNorm1d(2)
        def spread(by):
            with torch.no_grad():
                for one in (
                    w, trained_by_hand, untrained, slotted.net.bias, places["a b"].bias,
                    line[0].bias, part.args[0].bias, bound.__self__.bias, Task.net.bias,
                    norm.running_mean,
                ):
                    one.add_(by)
    """)  # fmt: skip
    failed = fails(three, "if rank: spread(rank)\nraise ValueError('boom')")
    assert parted(failed) == {
        "w", "trained_by_hand", "slotted.net", "places['a b']", "line[0]", "part.args[0]",
        "bound.__self__", "Task.net",
    }  # fmt: skip
    # A rank may still compare what the failed cell has left.
    who = until(lambda: _unless_busy(three.run("%dist who norm").stdout), 20)
    assert "parameters equal; rank 1: other buffers" in who
    told = re.search(r"`(%dist sync [^`]+)` makes them equal", shown(failed))
    assert told
    assert "\"places['a b']\"" in told[1], "in one word"
    three.run(told[1])
    assert not parted(fails(three, "raise ValueError('boom')"))
    wrong = three.run("%dist sync places['a b']", check=False)
    assert "if a key has quotes, put other quotes around the whole path" in wrong.error
    assert "there is no rank 7" in three.run("%dist sync w --from 7", check=False).error
    on_ranks(three, "if rank == 0: only_here = 1")
    wrong = three.run("%dist sync only_here", check=False)
    assert "there is no variable `only_here` on ranks 1-2" in wrong.error
    names = "w, trained_by_hand, untrained, by_hand, slotted, places, parameters, line, part, bound"
    on_ranks(three, f"del {names}, Task, norm, Slotted")


def test_what_exits_when_it_is_looked_at_is_nobodys_end(three: Kernel) -> None:
    on_ranks(three, """
        import sys
        class Settings:
            def __getattr__(self, name): sys.exit(f"no setting {name}")
        class Packed:
            def __reduce_ex__(self, protocol): raise SystemExit(4)
        class Pressed:
            def __reduce_ex__(self, protocol): raise KeyboardInterrupt
        class Unpacked:
            def __setstate__(self, state): raise SystemExit(3)
        class Stated(torch.optim.SGD):
            def state_dict(self): raise SystemExit(6)
        class Named(nn.Linear):
            def named_parameters(self, *a, **k): raise SystemExit(5)
        settings, packed, pressed, unpacked = Settings(), Packed(), Pressed(), Unpacked()
        unpacked.kept, whole = 1, {"a": 1}
        stated, named = Stated([nn.Parameter(torch.ones(1))], lr=0.1), Named(1, 1)
        before = os.getpid()
    """)  # fmt: skip
    assert re.search(r"^settings +Settings", three.run("%dist who settings").stdout, re.MULTILINE)
    failed = shown(fails(three, "raise ValueError('boom')"))
    assert "`stated` could not be compared: SystemExit: 6." in failed
    assert "`named` could not be compared: SystemExit: 5." in failed
    on_ranks(three, "assert os.getpid() == before\ndel stated, named")
    told = three.run("%dist restart 1 --like 0").stdout
    assert re.search(r"^  packed: SystemExit: 4$", told, re.MULTILINE)
    assert re.search(r"^  pressed: KeyboardInterrupt", told, re.MULTILINE)
    assert re.search(r"^  unpacked: rank 1: SystemExit: 3$", told, re.MULTILINE)
    assert "Not copied is what cells have set in the process itself: the states of random" in told
    body = "assert whole == {'a': 1} and settings\nif rank != 1: del packed, pressed, unpacked"
    on_ranks(three, f"{body}\ndel settings, whole, before")


def test_shards_of_different_steps_are_named(three: Kernel) -> None:
    on_ranks(
        three,
        """
        from torch.distributed.fsdp import fully_shard
        net = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3))
        fully_shard(net)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        def step(boom=False):
            sgd.zero_grad()
            net(torch.ones(2, 8)).sum().backward()
            if boom and rank == 0: raise ValueError("boom")
            sgd.step()
            dist.barrier()
        step()
        from torch.distributed.optim import ZeroRedundancyOptimizer
        wide = DDP(nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3)))
        zero = ZeroRedundancyOptimizer(wide.parameters(), torch.optim.Adam, lr=0.1)
        train(wide, zero)
    """,
    )
    failed = fails(three, "if rank == 1: raise ValueError('boom')\ndist.barrier()")
    assert "shards" not in shown(failed), shown(failed)
    failed = fails(three, "step(boom=True)")
    assert "The ranks' shards are of different steps: `net`." in shown(failed), shown(failed)
    failed = fails(three, "if rank: zero.optim.step()\nraise ValueError('boom')")
    assert re.search(r"shards are of different steps: .*`zero`", shown(failed)), shown(failed)
    on_ranks(three, "del net, sgd, wide, zero")


@pytest.mark.parametrize("kind", ["static_graph=True", "find_unused_parameters=True"])
def test_an_interrupt_that_is_caught_parts_nobody_in_silence(three: Kernel, kind: str) -> None:
    on_ranks(
        three,
        f"""
        model = DDP(nn.Linear(8, 1), {kind})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    """,
    )
    for stop in range(3):
        three.start(
            distributed("""
            try:
                print('in', flush=True)
                while True:
                    train(model, optimizer, 1)
                    time.sleep(0.002 * rank)
                    pending = dist.all_reduce(torch.ones(2), async_op=True)
            except KeyboardInterrupt:
                print('caught')
        """)
        )
        three.expect("in")
        time.sleep(0.2 + 0.037 * stop)
        three.interrupt()
        stopped = three.wait(20)
        assert "was killed" not in shown(stopped), shown(stopped)
        if stopped.ok:
            assert "caught" in stopped.text
        told = re.search(r"`(%dist sync .+?)` makes them equal", shown(stopped))
        same = on_ranks(three, "print('same', equal(model))").text
        assert told or "same True" in same, shown(stopped)
        if told:
            three.run(told[1])
        assert (
            "same True"
            in on_ranks(three, "train(model, optimizer)\nprint('same', equal(model))").text
        )
    on_ranks(three, "del model, optimizer, pending")


def test_a_dead_rank_leaves_the_living_compared_and_like_says_who_differs(three: Kernel) -> None:
    on_ranks(
        three,
        """
        import os, signal
        class Holder: pass
        holder = Holder()
        holder.model = DDP(nn.Linear(8, 1))
        optimizer = torch.optim.Adam(holder.model.parameters(), lr=0.01)
        train(holder.model, optimizer)
    """,
    )
    failed = fails(
        three,
        """
        if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2: optimizer.step()
        dist.barrier()
    """,
    )
    assert parted(failed) == {"holder.model", "optimizer"}, shown(failed)
    said = three.run("%dist restart 1 --like 0").text
    assert "nothing is missing" in said
    assert "Not equal on all ranks: holder.model, optimizer." in said
    three.run("%dist sync holder.model optimizer --from 0")
    check = """
        train(holder.model, optimizer)
        state = [s["exp_avg"] for s in optimizer.state.values()]
        flat = torch.cat([s.flatten() for s in state]); other = flat.clone()
        dist.broadcast(other, 0)
        told = [None] * 3
        dist.all_gather_object(told, bool(torch.equal(flat, other)) and equal(holder.model))
        print(told)
    """
    assert "[True, True, True]" in on_ranks(three, check).text
    fails(three, "if rank: os.kill(os.getpid(), signal.SIGKILL)")
    refused = three.run("%dist restart 0 --like 2", check=False)
    assert "rank 2 is dead, so no other rank" in refused.error
    said = three.run("%dist restart 2 --like 0").text
    assert "Rank 1 restarted, nothing is missing" in said
    assert "Rank 2 restarted, nothing is missing" in said
    assert "equal" not in said, said
    assert "[True, True, True]" in on_ranks(three, check).text
    on_ranks(three, "del holder, optimizer")


def test_after_the_users_destroy_kept_models_train_on_and_what_is_lost_is_named(
    three: Kernel,
) -> None:
    on_ranks(
        three,
        """
        from torch.distributed.fsdp import fully_shard
        pair = dist.new_group([0, 1, 2])
        model, apart = DDP(nn.Linear(8, 1)), DDP(nn.Linear(8, 1), process_group=pair)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        sharded = nn.Linear(6, 6)
        fully_shard(sharded)
        train(model, optimizer)
        dist.destroy_process_group()
    """,
    )
    after = on_ranks(three, "train(model, optimizer)\nprint('same', equal(model))")
    assert "same True" in after.text
    assert "`apart` is lost: a cell has destroyed its process group" in shown(after)
    assert "`sharded` is lost: a cell has destroyed its process group" in shown(after)
    on_ranks(three, "dist.destroy_process_group()")
    three.run("%dist restart 1 --like 0")
    after = on_ranks(three, "train(model, optimizer)\nprint('same', equal(model))")
    assert "same True" in after.text
    assert not LOST.search(shown(after))
    on_ranks(three, "model = optimizer = apart = sharded = pair = None")


def test_a_group_that_others_still_use_is_waited_for(three: Kernel, tmp_path: Path) -> None:
    on_ranks(three, "pair = dist.new_group([0, 1])\nmodel = nn.Linear(2, 2)")
    over = tmp_path / "over"
    body = f"while not os.path.exists({str(over)!r}): time.sleep(0.05)"
    three.run(distributed(body, "--async --ranks 2"))
    body = "if rank: nn.init.zeros_(model.weight)\nelse: dist.barrier(group=pair)\n1 / 0"
    failed = fails(three, body, "--ranks 0,1")
    assert parted(failed) == {"model"}, shown(failed)
    after = three.start(
        distributed("x = torch.ones(1)\ndist.all_reduce(x, group=pair)\nprint(x)", "--ranks 0,1")
    )
    three.expect("other ranks are still at work in it: this cell waits for job")
    over.touch()
    three.wait()
    assert "tensor([2.])" in after.text
    # What could not be compared then is compared now: rank 2's is as it was.
    assert "model" in str(parted(after)), shown(after)
    on_ranks(three, "del model")


def test_sync_among_the_ranks_that_have_it(three: Kernel) -> None:
    on_ranks(
        three,
        """
        pair = dist.new_group([0, 1])
        if rank < 2:
            model = DDP(nn.Linear(8, 1), process_group=pair)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            train(model, optimizer)
    """,
    )
    failed = fails(three, "if rank == 0: optimizer.step()\nraise ValueError('boom')")
    assert parted(failed) == {"model", "optimizer"}
    said = three.run("%dist sync model optimizer --from 0").text
    assert "model is now on ranks 0-1 as it was on rank 0" in said
    on_ranks(three, "if rank == 2: model = nn.Linear(8, 1)")
    refused = three.run("%dist sync model --from 2", check=False)
    assert "nothing was changed: it belongs to ranks 0-2 on rank 2, and to ranks 0-1 on rank 0" in (
        refused.error
    )
    on_ranks(three, "if rank == 2: del model")
    body = "if rank < 2:\n    train(model, optimizer)\n    print('same', equal(model, pair))"
    assert "same True" in on_ranks(three, body).text
    on_ranks(three, "if rank < 2: del model, optimizer")
    on_ranks(three, "if rank != 1: alone = nn.Linear(1, 1)")
    refused = three.run("%dist sync alone", check=False)
    assert "`alone` is shared by ranks 0,2 only" in refused.error
    assert "dist.new_group([0, 2])" in refused.error
    on_ranks(three, "alone = None")


def test_states_of_hooks_are_compared_and_made_equal(three: Kernel) -> None:
    """A hook that counts steps would compress on one rank and not on another."""
    on_ranks(
        three,
        """
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
        def with_hook(hook, state):
            model = DDP(nn.Linear(8, 8))
            model.register_comm_hook(state, hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            train(model, optimizer)
            return model, optimizer
        counting = post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, 100)
        compressing = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        model, optimizer = with_hook(post_localSGD_hook.post_localSGD_hook, counting)
        other, other_optimizer = with_hook(powerSGD_hook.powerSGD_hook, compressing)
        """,
    )
    failed = fails(three, "if rank == 1:\n    counting.iter += 5\n    raise ValueError('boom')")
    assert parted(failed) == {"model"}, shown(failed)
    three.run("%dist sync model --from 0")
    on_ranks(three, "compressing.iter += 5 * (rank == 1)")
    three.run("%dist sync other --from 0")
    show = "print(counting.iter, compressing.iter)"
    assert on_ranks(three, show, "--output all").text.count("3 0") == 3
    assert (
        "same True"
        in on_ranks(three, "train(other, other_optimizer)\nprint('same', equal(other))").text
    )
    on_ranks(three, "del model, optimizer, other, other_optimizer")


def test_sparse_states_are_sent_and_models_of_other_groups_are_other_models(three: Kernel) -> None:
    on_ranks(
        three,
        """
        model = DDP(nn.Embedding(16, 4, sparse=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        def step():
            optimizer.zero_grad()
            model(torch.tensor([rank, 5])).pow(2).sum().backward()
            optimizer.step()
        step()
    """,
    )
    failed = fails(three, "if rank == 1: optimizer.step()\nraise ValueError('boom')")
    assert parted(failed) == {"model", "optimizer"}
    three.run("%dist sync model optimizer --from 0")
    failed = fails(three, "step()\nprint('same', equal(model))\nraise ValueError('boom')")
    assert "same True" in shown(failed)
    assert not parted(failed), shown(failed)
    on_ranks(
        three,
        """
        model = DDP(nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters())
        pair = dist.new_group([0, 1])
        if rank < 2:
            model = DDP(nn.Linear(4, 1), process_group=pair)
            optimizer = torch.optim.Adam(model.parameters())
    """,
    )
    failed = fails(three, "raise ValueError('boom')")
    assert not parted(failed), shown(failed)
    said = three.run("%dist sync model optimizer --from 0").text
    assert "optimizer is now on ranks 0-1 as it was on rank 0" in said


def test_optimizers_travel_whole_or_are_refused(three: Kernel) -> None:
    three.run(
        "import torch\nnet = torch.nn.Linear(2, 1)\nlbfgs = torch.optim.LBFGS(net.parameters())"
    )
    after = on_ranks(
        three,
        """
        def closure():
            lbfgs.zero_grad()
            loss = net(torch.ones(1, 2)).pow(2).sum()
            loss.backward()
            return loss
        before = float(closure())
        lbfgs.step(closure)
        print('less', float(closure()) < before)
        class Every(torch.optim.SGD):
            def __init__(self, *args, **more):
                super().__init__(*args, **more)
                self.every = 3
        every = Every(net.parameters(), lr=0.1)
        from torch.distributed.optim import ZeroRedundancyOptimizer
        zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    """,
    )
    assert "less True" in after.text
    said = three.run("%dist restart 1 --like 0").text
    assert "zero: PicklingError: it holds only this rank's part of the state" in said
    assert on_ranks(three, "print(every.every)\nlbfgs.step(closure)").stdout.startswith("3")
