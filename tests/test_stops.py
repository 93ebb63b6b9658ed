"""Stops: told truly, quick, and heeded by all that a cell has called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown, stopped_by_button
from tests.helpers.notebook import distributed, new_ranks, on_ranks, plain
from tests.helpers.waiting import until

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


def test_a_stop_tells_the_place_in_what_the_cell_called_and_formats_no_traceback(
    cluster: Kernel,
) -> None:
    (cluster.home / "steps.py").write_text(
        "import time\n\ndef train_step():\n    while True: time.sleep(0.01)\n"
    )
    on_ranks(
        cluster,
        """
        import steps
        made, tb = [], get_ipython().InteractiveTB
        make = tb.structured_traceback
        tb.structured_traceback = lambda *args, **kwargs: made.append(1) or make(*args, **kwargs)
        def ends():
            try: steps.train_step()
            except KeyboardInterrupt: raise SystemExit(1)  # as Lightning does
    """,
    )
    place = r"Ranks 0-1 were stopped at cell line 3, in `train_step` \(steps.py:4\)\.$"
    for call in ("steps.train_step()", "ends()"):
        told = shown(stopped_by_button(cluster, call, 0))
        assert re.search(place, told, re.MULTILINE), told
    stopped = stopped_by_button(cluster, "steps.train_step()", 0)
    again = plain(on_ranks(cluster, "print(made)\n%tb").text)
    assert again.startswith("[]\n"), stopped.seen()
    assert "KeyboardInterrupt" in again
    assert "def train_step():" in again
    on_ranks(cluster, "tb.structured_traceback = make")


def test_a_stop_is_no_good_end_of_a_magic_that_shows_errors_itself(cluster: Kernel) -> None:
    cluster.start(distributed("%%capture\nopen(f'{rank}.in', 'w').close()\nwhile True: pass"))
    until(lambda: all((cluster.home / f"{rank}.in").exists() for rank in (0, 1)))
    cluster.interrupt()
    stopped = cluster.wait(20)
    assert "The cell was interrupted.\nRanks 0-1 were stopped" in shown(stopped)
    assert "Traceback" not in stopped.text
