"""Cells on XLA's devices that are stopped, and the kernel that has to be restarted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.states import post
from tests.helpers.waiting import until
from tests.test_outside import job_that_runs, jp_runtime_dir, jp_server_config, seen

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel
    from tests.helpers.states import Fetch

__all__ = ["jp_runtime_dir", "jp_server_config"]
LOOP = """
import nbdist, time
print("begins")
for step in nbdist.progress(range(100_000), "train"):
    nbdist.log(loss=1 / (step + 1))
    time.sleep(0.01)
"""
IN_C = """
import ctypes, os, threading, time
c, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
c.pthread_mutex_lock(lock)
def let_go():
    while not os.path.exists({over!r}): time.sleep(0.02)
    c.pthread_mutex_unlock(lock)
threading.Thread(target=let_go).start()
print("begins")
c.pthread_mutex_lock(lock)
print("goes on")
"""
"""No signal ends the wait for a lock."""


@pytest.fixture(scope="module")
def xla(shared_kernel: Kernel) -> Kernel:
    """Return a kernel in which XLA runs on two virtual devices."""
    shared_kernel.run("%load_ext nbdist")
    shared_kernel.run("%%distributed -np 2 --backend xla\npass", 120)
    return shared_kernel


def test_an_interrupt_stops_the_cell(xla: Kernel) -> None:
    cell = xla.start(distributed(LOOP))
    steps = re.compile(r"train: ([2-9]|\d\d)")
    xla.until(lambda: any(steps.search(out.text) for out in cell.events), 20, cell)
    xla.interrupt()
    xla.wait(20)
    told = r"The cell was interrupted\.\nRank 0 was stopped at cell line [456]\."
    assert re.search(told, cell.error), cell.error
    assert on_ranks(xla, "print(step > 0)").stdout == "True\n"


def test_a_time_limit_stops_the_cell(xla: Kernel) -> None:
    cell = on_ranks(xla, LOOP, "--timeout 0.5", check=False)
    assert "The cell was stopped: it ran longer than --timeout 0.5 s." in cell.error


def test_an_interrupt_inside_a_c_call_says_what_it_waits_for(xla: Kernel, tmp_path: Path) -> None:
    over = tmp_path / "over"
    cell = xla.start(distributed(IN_C.format(over=str(over))))
    xla.expect("begins")
    xla.interrupt()
    xla.expect("it is inside a C call", 30)
    assert not cell.done
    over.touch()
    xla.wait(60)
    assert "goes on" not in cell.stdout
    assert "It has reacted after" in cell.text
    assert "The cell was interrupted.\nRank 0 was stopped at cell line 10." in cell.error


async def test_the_sidebar_sees_it_and_stops_it(xla: Kernel, jp_fetch: Fetch) -> None:
    cell = xla.start(distributed(LOOP))
    xla.expect("train: ", 20)

    def goes_on(told: Any) -> bool:
        job = job_that_runs(told)
        return bool(job and job.get("bars") and job.get("metrics"))

    told = await seen(jp_fetch, xla.pid, goes_on)
    job = job_that_runs(told)
    assert job["launcher"] == "kernel"
    assert job["ranks"][0]["device"] == "2 CPU devices"
    assert job["ranks"][0]["words"].startswith("line ")
    assert job["bars"][0]["label"] == "train"
    route = "processes", told["id"]
    stacks = (await post(jp_fetch, *route, "stacks", job=job["id"]))["stacks"]
    assert re.search(r"line [456], in <module>", stacks["0"])
    assert "thread " not in stacks["0"].replace("main thread", "")
    await post(jp_fetch, *route, "interrupt", job=job["id"])
    xla.wait(20)
    assert "The cell was interrupted." in cell.error


def test_the_kernel_ends_to_be_started_anew(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    kernel.run("%%distributed -np 2 --backend xla\npass", 120)
    assert "The kernel ends now" in kernel.run("%dist restart kernel").stdout
    until(lambda: not kernel.alive, 30)
