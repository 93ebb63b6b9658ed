"""Stops: told truly, quick, and heeded by all that a cell has called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import distributed, new_ranks, on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

STUCK = "import ctypes\nctypes.PyDLL(None).sleep(600)"
"""C code that holds the GIL."""


@pytest.fixture(scope="module")
def cluster(notebook: Kernel) -> Kernel:
    """Return a kernel with two ranks."""
    on_ranks(notebook, "import os, subprocess, time\nimport torch, torch.distributed as dist")
    return notebook


def state_of_last_job(kernel: Kernel) -> str:
    return kernel.run("import nbdist\nprint(nbdist.jobs()[-1].state)").stdout.strip()


def test_a_stop_that_is_hurried_until_it_kills_has_not_ended_well(cluster: Kernel) -> None:
    cluster.start(distributed(f"print('in', flush=True)\n{STUCK}"))
    cluster.expect("in\n")
    cluster.interrupt()
    cluster.expect("do not react", 20)
    cluster.interrupt()
    stopped = cluster.wait(20)
    assert not stopped.ok
    assert "The cell was interrupted.\nRanks 0-1 could not be interrupted and were killed" in shown(
        stopped
    )
    assert state_of_last_job(cluster) == "interrupted"
    new_ranks(cluster)


def test_what_failed_is_told_though_its_end_is_hurried(cluster: Kernel) -> None:
    cluster.start(distributed(f"if rank == 1: raise ValueError('own')\n{STUCK}"))
    cluster.expect("Rank 0 does not react", 20)
    cluster.interrupt()
    failed = cluster.wait(20)
    assert failed.error.startswith("CellFailed: Rank 1 failed: ValueError: own (cell line 2)")
    assert "Traceback" in failed.text
    assert "Rank 0 could not be interrupted and was killed" in shown(failed)
    assert state_of_last_job(cluster) == "failed"
    new_ranks(cluster)
