"""Ranks come to life: forked from the warm process, or fresh where forking is not safe."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.conftest import KernelFactory

SUM = """%%distributed
import torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total))
"""


def test_ranks_that_cannot_be_forked_are_started_fresh(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_NO_FORK": "1"})
    kernel.run("%load_ext nbdist")
    kernel.run("%dist start -np 2", timeout=90)
    assert "sum 2" in kernel.run(SUM).text
    failed = kernel.run("%%distributed\nimport os\nif rank == 1: os._exit(4)", check=False)
    assert "Rank 1 exited with code 4" in failed.seen()
    assert "sum 2" in kernel.run(SUM, timeout=90).seen()
    assert (
        kernel.run(
            "import nbdist, psutil\n"
            "warm = nbdist.cluster().hub.host.warm.pid\n"
            "print({psutil.Process(r.pid).ppid() == warm for r in nbdist.cluster().ranks})"
        ).text.strip()
        == "{True}"
    )


def test_forked_ranks_have_random_numbers_of_their_own(start_kernel: KernelFactory) -> None:
    kernel = start_kernel()
    kernel.run("%load_ext nbdist")
    kernel.run("%dist start -np 2", timeout=90)
    cell = kernel.run(
        "%%distributed --output all\nimport random, numpy\n"
        "print(random.random(), numpy.random.rand(), numpy.random.randint(1 << 30))"
    )
    first, second = (line.split()[1:] for line in cell.text.splitlines())
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_folders_nobody_could_remove_go_with_the_next_start(start_kernel: KernelFactory) -> None:
    first = start_kernel(home="twice")
    first.run("%load_ext nbdist")
    first.run("%dist start -np 2", timeout=90)
    warm = int(first.run("import nbdist; print(nbdist.cluster().hub.host.warm.pid)").text)
    os.kill(first.pid, signal.SIGSTOP)  # it must not notice
    psutil.Process(warm).kill()
    psutil.wait_procs([psutil.Process(warm)], timeout=5)
    first.sigkill()
    assert len(list((first.home / "clusters").iterdir())) == 1
    second = start_kernel(home="twice")
    second.run("%load_ext nbdist")
    second.run("%dist start -np 1 --backend none", timeout=90)
    assert len(list((first.home / "clusters").iterdir())) == 1
    second.run("%dist stop")
