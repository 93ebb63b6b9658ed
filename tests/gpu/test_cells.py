"""Cells of two ranks that share a GPU: devices, training, names, vitals, metrics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.gpu.machine import DEVICE, MEGABYTE, NAME, REHEARSAL, first_gpu, needs_gpu, needs_gpus
from tests.gpu.models import DDP, FSDP
from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks, printed_by
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.gpu.conftest import Figure
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

SUM = """
import torch, torch.distributed as dist
total = torch.ones(1, device=device)
dist.all_reduce(total)
print(dist.get_backend(), device, world_size, int(total))
"""
EQUAL = """
whole = lambda p: p.cpu().full_tensor().to(device) if hasattr(p, "full_tensor") else p
parts = [whole(p) for p in model.parameters()]
mine = torch.cat([part.detach().flatten() for part in parts])
theirs = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(theirs, mine)
assert torch.equal(*theirs), "the ranks have parted"
assert mine.device == device, mine.device
print("equal")
"""
COMPUTE = f"""
work = torch.randn({64 if REHEARSAL else 2000}, {64 if REHEARSAL else 2000}, device=device)
while True:
    work = torch.tanh(work @ work)
    float(work[0, 0])
"""


HOLD = """
def hold():
    held = torch.ones(64_000_000, device=device)
    raise ValueError("boom")
hold()
"""


def status(kernel: Kernel) -> dict[str, dict[str, str]]:
    """Return the table of `%dist status` by rank and title."""
    lines = kernel.run("%dist status").stdout.splitlines()
    titles, *rows = [re.split(r"  +", line) for line in lines if re.match(r"rank  |\d+  ", line)]
    return {row[0]: dict(zip(titles, row, strict=True)) for row in rows}


def test_an_index_out_of_range_on_a_rank_that_is_alone_is_told_once(
    start_kernel: KernelFactory,
) -> None:
    needs_gpu()
    kernel = start_kernel(env=first_gpu())
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "import torch", "-np 1 --launcher engines")
    lost = "float(torch.ones(10, device=device)[torch.tensor([11], device=device)])"
    failed = on_ranks(kernel, lost, check=False)
    assert failed.error.count("Rank 0 failed on the GPU: device-side assert") == 1, failed.seen()
    assert failed.error.count("All that rank 0 had on the GPU is lost.") == 1
    assert failed.error.count("CUDA_LAUNCH_BLOCKING=1") == 1
    assert not re.search(r"SIGABRT|frame #|Search for `|Compile with `", failed.error)
    again = on_ranks(kernel, "import torch\nprint(float(torch.ones(1, device=device)))")
    assert again.stdout == "1.0\n"


def test_ranks_share_the_gpu_and_say_so(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={} if REHEARSAL else first_gpu())
    kernel.run("%load_ext nbdist")
    first = on_ranks(kernel, SUM, "-np 2 --backend ddp")
    assert first.stdout == f"gloo {NAME} 2 2\n"
    assert printed_by(kernel, 1) == first.stdout
    if not REHEARSAL:
        assert re.search(r"2 ranks share (1 GPU|the GPU)", shown(first))
        alone = on_ranks(kernel, SUM, "-np 1")
        assert alone.stdout == f"nccl {NAME} 1 1\n"


def test_there_is_a_rank_for_each_gpu_by_default(start_kernel: KernelFactory) -> None:
    needs_gpu()
    kernel = start_kernel(env=first_gpu())
    kernel.run("%load_ext nbdist")
    assert on_ranks(kernel, SUM).stdout == "nccl cuda:0 1 1\n"


def test_each_rank_has_its_own_gpu_where_there_are_as_many(kernel: Kernel) -> None:
    needs_gpus(2)
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, SUM, "-np 2")
    found = [printed_by(kernel, rank) for rank in (0, 1)]
    assert found == ["nccl cuda:0 2 2\n", "nccl cuda:1 2 2\n"]


@pytest.mark.parametrize("model", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_training_keeps_the_ranks_equal(ranks: Kernel, model: str) -> None:
    on_ranks(ranks, f"{model}\ntorch.manual_seed(rank)\nfor _ in range(5): step()")
    assert on_ranks(ranks, EQUAL).stdout == "equal\n"
    on_ranks(ranks, "del model, optimizer, step")


def test_a_crash_of_torch_under_gloo_is_told(ranks: Kernel) -> None:
    needs_gpu()
    on_ranks(ranks, FSDP)
    crashed = on_ranks(ranks, "next(model.parameters()).full_tensor()", check=False)
    if "SIGSEGV" in shown(crashed):  # torch 2.11
        assert "torch crashes there under gloo" in shown(crashed)
    on_ranks(ranks, "import time, torch, torch.distributed as dist")


def test_who_shows_devices_and_compares_values(ranks: Kernel) -> None:
    on_ranks(ranks, "same = torch.ones(3, device=device)\nother = same * rank")
    told = ranks.run("%dist who same other").stdout.splitlines()
    rows = {row.split()[0]: row for row in told}
    assert NAME in rows["same"]
    assert rows["same"].endswith("equal")
    assert re.search(r"values differ|rank 1: other values", rows["other"])


def test_a_tensor_of_the_notebook_arrives_on_the_ranks_own_device(ranks: Kernel) -> None:
    ranks.run(f"brought = torch.arange(6.0, device={DEVICE!r})")
    seen = on_ranks(ranks, "assert brought.device == device\nprint(brought.sum().item())")
    assert seen.stdout == "15.0\n"
    assert printed_by(ranks, 1) == "15.0\n"
    ranks.run("del brought")


def test_what_is_returned_and_pulled_arrives_on_the_cpu(ranks: Kernel) -> None:
    on_ranks(ranks, "made = torch.ones(3, device=device) * 2", "--return made")
    assert ranks.run("print(made.device, made.sum().item())").stdout == "cpu 6.0\n"
    on_ranks(ranks, "pulled = torch.nn.Linear(2, 2).to(device)")
    ranks.run("%dist pull pulled")
    assert ranks.run("print({p.device.type for p in pulled.parameters()})").stdout == "{'cpu'}\n"
    ranks.run("del made, pulled")


def test_status_has_the_gpu_of_idle_and_of_busy_ranks(ranks: Kernel) -> None:
    on_ranks(ranks, "held = torch.ones(16_000_000, device=device)")
    idle = status(ranks)
    assert [idle[rank]["device"] for rank in "01"] == [NAME, NAME]
    ranks.run(f"%%distributed --async\n{COMPUTE}")
    busy: dict[str, dict[str, str]] = {}

    def both_are_seen() -> bool:  # what NVML tells is the use of the last second
        busy.update(status(ranks))
        use = [int(found[0]) for rank in "01" if (found := re.match(r"\d+", busy[rank]["GPU"]))]
        running = all("running line" in busy[rank]["state"] for rank in "01")
        return running and (REHEARSAL or (len(use) == 2 and min(use) > 20))

    until(both_are_seen, told=lambda: busy)
    ranks.run("nbdist.jobs()[-1].cancel()")
    on_ranks(ranks, "del held")
    assert [busy[rank]["device"] for rank in "01"] == [NAME, NAME]
    needs_gpu()
    for table in (idle, busy):
        assert all(re.fullmatch(r"[\d.]+ [MG]B", table[rank]["GPU memory"]) for rank in "01"), table
        assert all(re.fullmatch(r"\d+ %", table[rank]["GPU"]) for rank in "01"), table


def test_scalars_are_logged_without_waiting_for_the_gpu(ranks: Kernel, figure: Figure) -> None:
    size = 200 if REHEARSAL else 6000
    cell = on_ranks(
        ranks,
        f"""
        work = torch.randn({size}, {size}, device=device)
        loss = torch.zeros((), device=device)
        work @ work
        finish = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
        finish()
        pending = 0
        began = time.perf_counter()
        for step in range(20):
            work = work @ work * 1e-4
            loss.fill_(step)
            nbdist.log(loss=loss)
            if device.type == "cuda":
                pending += not torch.cuda.current_stream().query()
            loss.fill_(-1)
        queued = time.perf_counter() - began
        finish()
        print("share", queued / (time.perf_counter() - began), pending)
        del work
        """,
    )
    logged = ranks.run("print(nbdist.jobs()[-1].metrics['loss'].of(0).values.tolist())")
    assert logged.stdout == f"{[float(step) for step in range(20)]}\n"
    needs_gpu()
    _, share, pending = cell.stdout.split()
    figure("share of a loop's time in which it is queued, with log", f"{float(share):.1%}")
    assert int(pending) > 10, "after most calls the GPU still had the step before them to do"


def test_a_module_that_asks_for_a_gpu_is_preloaded_and_one_that_opens_it_is_not(
    start_kernel: KernelFactory, tmp_path: Path
) -> None:
    (tmp_path / "asks.py").write_text("import torch\nfound = torch.cuda.is_available()\n")
    (tmp_path / "opens.py").write_text("import torch\ntorch.cuda.init()\n")
    kernel = start_kernel(env={} if REHEARSAL else first_gpu())
    kernel.run(f"%load_ext nbdist\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})")
    kernel.run("%dist preload asks")
    seen = on_ranks(kernel, f"import asks, sys\nprint(asks.found)\n{SUM}", "-np 2 --backend ddp")
    assert seen.stdout == f"{not REHEARSAL}\ngloo {NAME} 2 2\n"
    needs_gpu()
    refused = kernel.run("%dist preload opens", check=False)
    assert "importing opens opens the GPU" in shown(refused)
    assert on_ranks(kernel, SUM).stdout == f"gloo {NAME} 2 2\n"


def test_curves_of_a_loop_on_the_gpu_are_complete(ranks: Kernel) -> None:
    on_ranks(ranks, f"{DDP}\nfor _ in nbdist.progress(range(30), 'train'): nbdist.log(loss=step())")
    seen = ranks.run("print(len(nbdist.jobs()[-1].metrics['loss'].of(1).values))")
    assert seen.stdout == "30\n"
    on_ranks(ranks, "del model, optimizer, step")


def test_memory_of_a_failed_cell_is_let_go_and_free_gives_it_back(ranks: Kernel) -> None:
    needs_gpu()
    ranks.run("%dist free")
    before, _ = allocator(ranks)
    on_ranks(ranks, HOLD, check=False)
    after, kept = allocator(ranks)
    assert after - before < MEGABYTE
    said = ranks.run("%dist free").stdout
    assert re.search(r"GPU, by tensors +GPU, by torch", said)
    assert kept - allocator(ranks)[1] > 200 * MEGABYTE


def allocator(kernel: Kernel) -> tuple[int, int]:
    """Return the bytes that tensors of rank 0 have, and those torch keeps for them."""
    show = "print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())"
    allocated, reserved = map(int, on_ranks(kernel, show).stdout.split())
    return allocated, reserved
