"""Cells that make their own workers: one program, seen by us from its beginning to its end."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.cell.script.own_workers import makes_workers
from tests.helpers.faults import fails, shown
from tests.helpers.kernel import free_port
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.processes import runs
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.timeout(240)

MADE = {
    "import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)": ("mp.spawn", 2),
    "torch.multiprocessing.spawn(f)": ("torch.multiprocessing.spawn", 1),
    "from torch.multiprocessing import spawn as go\n\ngo(f)": ("go", 3),
    "from accelerate import notebook_launcher\nnotebook_launcher(f, num_processes=2)": (
        "notebook_launcher", 2,
    ),
    "import accelerate\naccelerate.debug_launcher(f, 2)": ("accelerate.debug_launcher", 2),
    "trainer = L.Trainer(strategy='ddp_notebook_find_unused_parameters_true')": (
        'strategy="ddp_notebook_find_unused_parameters_true"', 1,
    ),
    "L.Trainer(strategy='ddp_spawn', devices=2)": ('strategy="ddp_spawn"', 1),
    "runner.train(model=model, ddp=True)": ("runner.train(ddp=True)", 1),
    "runner.train(engine=dl.DistributedDataParallelEngine())": (
        "dl.DistributedDataParallelEngine", 1,
    ),
    "a()\nrunner.train(ddp=True)\nmp.spawn(f)": ("runner.train(ddp=True)", 2),
    "runner.train(ddp=False)": None,
    "L.Trainer(strategy='ddp')": None,
    "spawn(f)": None,
    "pool.spawn(f)": None,
    "tmp.spawn(f)": None,
}  # fmt: skip


@pytest.mark.parametrize("code", MADE)
def test_what_makes_workers_is_found(code: str) -> None:
    found = makes_workers(ast.parse(code))
    assert (found and tuple(found)) == MADE[code]


TRAIN = """
    import os
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.nn.parallel import DistributedDataParallel

    def train(rank, size, seed):
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
        dist.init_process_group("gloo", rank=rank, world_size=size)
        torch.manual_seed(seed)
        model = DistributedDataParallel(Net(4, 1))
        model(torch.full((2, 4), float(rank))).sum().backward()
        grad = float(model.module.weight.grad.mean())
        print(f"worker {rank} of {size} {grad}\\n", end="", flush=True)  # in one piece
        dist.destroy_process_group()

    names = ("MASTER", "RANK", "GROUP", "TORCHEL")
    print(sorted(name for name in os.environ if name.startswith(names)))
    mp.spawn(train, args=(2, 7), nprocs=2)
    print("all have ended")
"""


@pytest.fixture
def program(notebook: Kernel, tmp_path: Path) -> Kernel:
    """Return a notebook with two ranks that has defined what such a program uses."""
    notebook.run(
        f"""
        import os
        os.environ["TMPDIR"] = {str(tmp_path)!r}  # torch and Lightning leave files there
        from torch import nn
        class Net(nn.Linear):
            "A class of the notebook."
        port = {free_port()}
        """
    )
    return notebook


def test_a_cell_that_spawns_is_one_program(program: Kernel) -> None:
    """HAL's way: the function and what starts it in one cell."""
    told = shown(on_ranks(program, TRAIN, timeout=120))
    assert "makes its own workers: the cell runs as one program" in told
    said = sorted(re.findall(r"worker (\d) of 2 (\S+)", told))
    assert said == [("0", "1.0"), ("1", "1.0")], told
    assert "[]\n" in told
    assert "all have ended" in told
    # Ranks that stay are there as before, and the next cell goes there.
    on_ranks(program, "x = rank")
    assert on_ranks(program, "print(x, world_size)").stdout == "0 2\n"


LEAVES = """
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def leave(rank, size):
        store = dist.TCPStore("localhost", port, size, is_master=rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        dist.barrier()
        for _ in range(10):
            dist.all_reduce(torch.ones(20000), async_op=True)

    for _ in range(3):
        mp.spawn(leave, args=(2,), nprocs=2)
    print("all have ended", time() > 0, _atexit.__name__)
"""


def test_workers_that_leave_gloo_at_work_end_well(program: Kernel) -> None:
    """In plain torch, Gloo's threads abort most of such workers while Python ends (SIGABRT)."""
    program.run("from time import time\nimport atexit as _atexit")  # names of the script's own
    told = shown(on_ranks(program, LEAVES, timeout=120))
    assert "all have ended True atexit" in told


PYTHON = "--launcher python"
SPAWNED = """
    import multiprocessing, os

    def work(rank, size, meet):
        meet.wait()
        print(f"worker {rank} of {size} {offset + rank}\\n", end="", flush=True)

    names = ("MASTER", "RANK", "GROUP", "TORCHEL")
    print(sorted(name for name in os.environ if name.startswith(names)))
    context = multiprocessing.get_context("spawn")
    meet = context.Barrier(2)
    workers = [context.Process(target=work, args=(rank, 2, meet)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("ended with", [worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize("how", [PYTHON, f"{PYTHON} --cold"])
def test_a_cell_is_one_program_if_the_line_says_so(program: Kernel, how: str) -> None:
    """Workers that are spawned without torch: nothing in the cell says what it is."""
    program.run("offset = 10")
    told = shown(on_ranks(program, SPAWNED, how, timeout=120))
    assert "makes its own workers" not in told
    said = sorted(re.findall(r"worker (\d) of 2 (\S+)", told))
    assert said == [("0", "10"), ("1", "11")], told
    assert "[]\n" in told
    assert "ended with [0, 0]" in told
    on_ranks(program, "x = rank")
    assert on_ranks(program, "print(x, world_size)").stdout == "0 2\n"


FAILS = """
    import torch.multiprocessing as mp

    def work(rank):
        assert rank == 0, 'the true cause'

    mp.spawn(work, nprocs=2)
"""


def test_a_workers_error_is_told_with_its_line(program: Kernel) -> None:
    told = shown(fails(program, FAILS, PYTHON))
    assert "makes its own workers" not in told  # the line says it already
    assert (
        "Rank 0 failed: ProcessRaisedException: process 1: AssertionError: the true cause" in told
    )
    line = distributed(FAILS).splitlines().index("    assert rank == 0, 'the true cause'") + 1
    assert f"(cell line {line})" in told
    assert re.search(rf'File "Cell In\[\d+\]", line {line}, in work', told)
    assert "script.py" not in told


# What `mp.spawn` calls. Forks import nothing, and torch watches and ends them in the same way.
FORKED = """
    import os, signal, time
    import torch.multiprocessing as mp

    def work(rank):
        print(f"pid {os.getpid()}\\n", end="", flush=True)
        if rank == WHICH:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(0.1)

    mp.start_processes(work, nprocs=2, start_method="fork")
"""


def test_a_worker_that_is_killed_is_told(program: Kernel) -> None:
    told = shown(fails(program, FORKED.replace("WHICH", "1"), PYTHON))
    assert "process 1 terminated with signal SIGKILL" in told


def workers(kernel: Kernel, body: str) -> list[psutil.Process]:
    """Start a program with two workers; return them once they work."""
    cell = kernel.start(distributed(body, PYTHON))
    kernel.until(lambda: len(re.findall(r"pid \d+", cell.stdout)) == 2, 60)
    return [psutil.Process(int(pid)) for pid in re.findall(r"pid (\d+)", cell.stdout)]


def test_an_interrupt_ends_all_of_it(program: Kernel) -> None:
    pids = workers(program, FORKED.replace("WHICH", "None"))
    program.interrupt()
    assert "interrupted" in shown(program.wait(60))
    until(lambda: not any(map(runs, pids)), 30)  # killed, but a process takes its time to go


# Unlike the workers of torch, these do not ask Linux to end them with their parent.
ENDLESS = """
    import multiprocessing, os, time

    def work():
        print(f"pid {os.getpid()}\\n", end="", flush=True)
        while True:
            time.sleep(0.1)

    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        context.Process(target=work).start()
"""


def test_nothing_outlives_the_kernel(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    pids = workers(kernel, ENDLESS)
    kernel.sigkill()
    until(lambda: not any(map(runs, pids)), 30)


LIGHTNING = """
    import lightning, torch
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            if index == 0:
                size = self.trainer.world_size
                print(f"worker {self.global_rank} of {size}\\n", end="", flush=True)
            return self.net(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    data = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
    same = dict(
        devices=2, accelerator="cpu", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    print("by forks", flush=True)
    lightning.Trainer(strategy="ddp_notebook", **same).fit(Model(), data)
    print("by spawned workers", flush=True)
    lightning.Trainer(strategy="ddp_spawn", **same).fit(Model(), data)
"""
ACCELERATE = """
    from accelerate import Accelerator, debug_launcher

    def train(*_):
        accelerator = Accelerator(cpu=True)
        print("worker", accelerator.process_index, "of", accelerator.num_processes, flush=True)
        accelerator.wait_for_everyone()

    debug_launcher(train, num_processes=2)
"""
WORKER = re.compile(r"^worker (\d) of 2$", re.MULTILINE)


def test_what_lightning_starts_is_of_one_program(program: Kernel) -> None:
    cell = on_ranks(program, LIGHTNING, timeout=120)
    assert 'strategy="ddp_notebook"` (cell line ' in cell.text
    assert "makes its own workers: the cell runs as one program" in cell.text
    forked, spawned = cell.text.partition("by forks")[2].split("by spawned workers")
    assert sorted(WORKER.findall(forked)) == ["0", "1"]
    assert sorted(WORKER.findall(spawned)) == ["0", "1"]


def test_what_accelerate_starts_is_of_one_program(program: Kernel) -> None:
    cell = on_ranks(program, ACCELERATE, timeout=120)
    assert "makes its own workers: the cell runs as one program" in cell.text
    assert sorted(WORKER.findall(cell.text)) == ["0", "1"]


def test_what_fits_no_program_is_said_first(program: Kernel) -> None:
    for code, told in {
        "%%distributed --launcher python -np 2\n1": "-np is for ranks",
        "%%distributed --launcher python --ranks 0\n1": "--ranks is for engines",
        "%%distributed --launcher python --max-restarts 2\n1": "--max-restarts is for scripts",
        "%%distributed --launcher python --backend ddp\n1": "does not go with launcher python",
        "%%distributed --launcher python\nprint(rank)": "`rank` is defined on ranks only",
    }.items():
        assert told in program.run(code, check=False).error
    body = "import torch.multiprocessing as mp\ndef f(rank): pass\nif rank == 0: mp.spawn(f)"
    cell = program.run(f"%%distributed -np 2 --launcher engines\n{body}")
    assert "makes its own workers" not in cell.text  # somebody knows what is done
    cell = program.run(f"%%distributed -np 2\n{body.replace('rank == 0', 'rank == 2')}")
    assert "`mp.spawn` (cell line 4) makes its own workers, on each of the 2 ranks" in cell.text


def test_it_is_saved_as_the_program_that_it_is(program: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    program.run(
        "import argparse\nclass Box(argparse.Namespace):\n    'A class that needs no torch.'"
    )
    told = program.run(f"%%distributed {PYTHON} --save {path}\nprint('of', Box(size=2))")
    assert f"python {path}" in told.text
    text = path.read_text()
    assert "It makes its own workers: python own.py" in text
    assert "RANK" not in text
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert ran.stdout == "of Box(size=2)\n"
