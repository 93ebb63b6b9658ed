"""On GPUs: one device a rank, nccl, and the same care after a fault.

Skipped where there is no GPU; the rest of the suite runs the same paths on gloo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kernel import Kernel

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def ranks() -> int:
    """Return how many ranks can have a GPU of their own."""
    return int(torch.cuda.device_count())


def test_each_rank_has_its_gpu_and_nccl(kernel: Kernel, ranks: int) -> None:
    kernel.run("%load_ext nbdist")
    seen = kernel.run(
        f"%%distributed -np {ranks}\n"
        "import torch, torch.distributed as dist\n"
        "total = torch.ones(1, device=device)\n"
        "dist.all_reduce(total)\n"
        "assert device.index == local_rank == torch.cuda.current_device()\n"
        "print(dist.get_backend(), int(total))"
    )
    assert "nccl" in seen.text
    assert str(ranks) in seen.text


def test_a_kept_model_trains_on_after_a_fault(kernel: Kernel, ranks: int) -> None:
    if ranks < 2:
        pytest.skip("a rank that waits for another needs 2 GPUs")
    kernel.run("%load_ext nbdist")
    kernel.run(
        f"%%distributed -np {ranks}\n"
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(torch.nn.Linear(8, 1).to(device), device_ids=[local_rank])\n"
        "def step():\n"
        "    model(torch.ones(4, 8, device=device)).mean().backward()\n"
        "    torch.cuda.synchronize()\n"
        "step()"
    )
    failed = kernel.run(
        "%%distributed\nif rank == 1: raise ValueError('boom')\nstep()", check=False
    )
    assert "Rank 1 failed: ValueError: boom" in failed.seen()
    assert kernel.run("%%distributed\nstep()\nprint('went on')").text.strip() == "went on"


def test_a_failed_cells_memory_is_let_go_and_free_gives_it_back(kernel: Kernel, ranks: int) -> None:
    kernel.run("%load_ext nbdist")
    kernel.run(
        f"%%distributed -np {ranks}\n"
        "import torch\n"
        "def step():\n"
        "    held = torch.ones(64_000_000, device=device)\n"
        "    raise ValueError('boom')\n"
        "step()",
        check=False,
    )
    show = "%%distributed\nprint(torch.cuda.memory_{}() < {})"
    assert kernel.run(show.format("allocated", 1e6)).text == "True\n"
    said = kernel.run("%dist free").stdout
    assert "GPU, by tensors  GPU, by torch" in said.splitlines()[0]
    assert kernel.run(show.format("reserved", 1e8)).text == "True\n"


def test_scalars_are_logged_without_waiting_for_the_gpu(kernel: Kernel, ranks: int) -> None:
    kernel.run("%load_ext nbdist\nimport nbdist")
    kernel.run(
        f"%%distributed -np {ranks}\n"
        "import time, torch\n"
        "work = torch.randn(6000, 6000, device=device)\n"
        "loss = torch.zeros((), device=device)\n"
        "torch.cuda.synchronize()\n"
        "began = time.perf_counter()\n"
        "for step in range(20):\n"
        "    work = work @ work * 1e-4\n"
        "    loss.fill_(step)\n"
        "    nbdist.log(loss=loss)\n"
        "    loss.fill_(-1)\n"
        "queued = time.perf_counter() - began\n"
        "torch.cuda.synchronize()\n"
        "assert queued < 0.5 * (time.perf_counter() - began), queued"
    )
    logged = kernel.run("print(nbdist.jobs()[-1].metrics['loss'].of(0).values.tolist())")
    assert logged.stdout == f"{[float(step) for step in range(20)]}\n"
