"""`--backend horovod --launcher engines`: Horovod on ranks that stay."""

from __future__ import annotations

import pytest

from tests.helpers.faults import shown
from tests.helpers.kernel import Kernel
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.processes import listening

pytestmark = pytest.mark.horovod
FLAGS = "-np 2 --backend horovod --launcher engines"
MODEL = """
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    def step():
        optimizer.zero_grad()
        model(torch.full((8, 4), 1.0 + rank)).square().mean().backward()
        optimizer.step()
    step()
    kept = "kept"
"""
GROUPED = """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 1, bias=False)]
    model = torch.nn.Sequential(*layers)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(), groups=1,
    )
    def step():
        optimizer.zero_grad()
        model(torch.full((8, 4), 1.0 + rank)).square().mean().backward()
        optimizer.step()
    step()
    def fail(gradient):
        raise ValueError("the second layer's gradient is there, the first one's is not")
    failing = layers[0].weight.register_hook(fail)
    step()
"""
TRAINS_ON = """
    for _ in range(3):
        step()
    weights = hvd.allgather(model.weight.detach())
    print(torch.equal(weights[0], weights[1]), kept, hvd.allreduce(torch.ones(1), op=hvd.Sum))
"""


@pytest.fixture(scope="module")
def horovod(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with two ranks that Horovod has joined."""
    shared_kernel.run("%load_ext nbdist\nimport torch")
    on_ranks(shared_kernel, "import torch", FLAGS)
    return shared_kernel


def model(kernel: Kernel) -> None:
    """Give the ranks a model with an optimizer of Horovod's that has made a step."""
    on_ranks(kernel, MODEL)


def trains_on(kernel: Kernel) -> None:
    """Check that the model the ranks hold trains on, equal on both."""
    assert on_ranks(kernel, TRAINS_ON).stdout == "True kept tensor([2.])\n"


def test_it_is_initialised_and_variables_stay(horovod: Kernel) -> None:
    on_ranks(horovod, "x = hvd.allreduce(torch.ones(1) + rank, op=hvd.Sum)")
    cell = on_ranks(horovod, "print(hvd.rank() == rank, hvd.size() == world_size, x, device)")
    assert cell.stdout == "True True tensor([3.]) cpu\n"


@pytest.mark.parametrize("where", ["before", "within a step"])
def test_a_rank_that_raises_frees_the_others(horovod: Kernel, where: str) -> None:
    model(horovod)
    broken = "hvd.allreduce(torch.ones(1))" if where == "before" else "step()"
    cell = on_ranks(
        horovod,
        f"""
        if rank == 1:
            raise ValueError("the true cause")
        {broken}
        """,
        check=False,
    )
    told = shown(cell)
    assert "Rank 1 failed: ValueError: the true cause (cell line 3)" in told
    assert "HorovodInternalError" not in told
    trains_on(horovod)


def test_a_group_of_gradients_that_has_begun_is_begun_anew(horovod: Kernel) -> None:
    told = shown(on_ranks(horovod, GROUPED, check=False))
    assert "ValueError: the second layer's gradient is there, the first one's is not" in told
    cell = on_ranks(
        horovod,
        """
        failing.remove()
        for _ in range(3):
            step()
        weights = [hvd.allgather(layer.weight.detach()).chunk(2) for layer in layers]
        print([torch.equal(*each) for each in weights])
        """,
    )
    assert cell.stdout == "[True, True]\n"


def test_an_interrupt_inside_a_collective(horovod: Kernel) -> None:
    model(horovod)
    horovod.start(
        distributed(
            """
            import time
            print("begun", flush=True)
            if rank == 0:
                hvd.allreduce(torch.ones(1))
            time.sleep(600)
            """
        )
    )
    horovod.expect("begun", 60)
    horovod.interrupt()
    told = shown(horovod.wait(30))
    assert "The cell was interrupted." in told
    trains_on(horovod)


def test_no_collective_behind_a_caught_interrupt_pairs_with_an_earlier_one(
    horovod: Kernel,
) -> None:
    model(horovod)
    on_ranks(horovod, "import time\nlate = torch.ones(1) * (rank + 1)")
    horovod.start(
        distributed(
            """
            try:
                print("begun", flush=True)
                if rank == 1:
                    hvd.allreduce(torch.ones(1), op=hvd.Sum)
                while True: time.sleep(0.01)
            except KeyboardInterrupt:
                late = hvd.allreduce(late, op=hvd.Sum)
            """
        )
    )
    horovod.expect("begun", 60)
    horovod.interrupt()
    assert "The cell was interrupted." in shown(horovod.wait(30))
    assert on_ranks(horovod, "print(float(late))").stdout == "1.0\n"
    trains_on(horovod)


def test_a_killed_rank_is_replaced(horovod: Kernel) -> None:
    model(horovod)
    cell = on_ranks(
        horovod,
        """
        import os, signal
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(1))
        """,
        check=False,
    )
    assert "Rank 1 was killed by SIGKILL" in shown(cell)
    cell = on_ranks(
        horovod,
        """
        import torch
        kept = hvd.allgather_object(globals().get("kept"), name="kept")
        print(kept, hvd.allreduce(torch.ones(1), op=hvd.Sum))
        """,
    )
    assert cell.stdout == "['kept', None] tensor([2.])\n"
    model(horovod)
    trains_on(horovod)


def test_its_optimizer_does_not_travel(horovod: Kernel) -> None:
    model(horovod)
    told = shown(horovod.run("%dist restart 1 --like 0"))
    assert "a Horovod optimizer cannot be copied from its rank" in told
    assert on_ranks(horovod, "print(kept, model)", "--ranks 1").stdout.startswith("kept Linear")


def test_models_are_made_equal(horovod: Kernel) -> None:
    on_ranks(horovod, "net = torch.nn.Linear(2, 1)\ntorch.nn.init.constant_(net.weight, rank)")
    horovod.run("%dist sync net --from 1")
    assert on_ranks(horovod, "print(net.weight.tolist())").stdout == "[[1.0, 1.0]]\n"
    body = """
        plain = torch.optim.SGD(net.parameters(), lr=0.1 + rank, momentum=0.9)
        net(torch.full((1, 2), rank + 1.0)).sum().backward()
        plain.step()
        schedule = torch.optim.lr_scheduler.StepLR(plain, 1 + rank)
    """
    on_ranks(horovod, body)
    for name in ("plain", "schedule"):
        horovod.run(f"%dist sync {name} --from 1")
    body = """
        (kept,) = (state["momentum_buffer"] for key, state in plain.state.items() if key.dim() == 2)
        print(plain.param_groups[0]["lr"], kept.tolist(), schedule.step_size)
    """
    assert on_ranks(horovod, body, "--ranks 0").stdout == "1.1 [[2.0, 2.0]] 2\n"
    body = """
        words = ['no', 'model']
        if rank: lonely = 1
        odd, even = torch.nn.Linear(2, 1 + rank), torch.full((2,), rank)
        # Only one rank's second layer was used.
        two = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
        adam = torch.optim.Adam(two.parameters())
        two[:1 + rank](torch.ones(1, 1)).sum().backward()
        adam.step()
    """
    on_ranks(horovod, body)
    told = horovod.run("%dist sync words --from 1", check=False).error
    assert "can be made equal on all ranks, not a list" in told
    told = horovod.run("%dist sync odd", check=False).error
    assert "`weight` is float32 (1, 2) on rank 0 and float32 (2, 2) on rank 1" in told
    horovod.run("%dist sync even adam --from 1")
    printed = on_ranks(horovod, "print(even.tolist(), len(adam.state))", "--ranks 0").stdout
    assert printed == "[1, 1] 4\n"
    told = horovod.run("%dist sync lonely --from 1", check=False).error
    assert "there is no variable `lonely` on rank 0" in told


def test_its_sockets_are_on_loopback(horovod: Kernel) -> None:
    on_ranks(horovod, "hvd.allreduce(torch.ones(1))")
    found = listening(horovod)
    assert found
    assert found <= {"127.0.0.1", "::1"}
