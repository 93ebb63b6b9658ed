"""`%dist stacks` of jobs that are scripts; the cluster's ranks are in `test_hangs`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import complete, distributed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.helpers.kernel import Kernel

STUCK = """
    import ctypes, os, time
    c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    def deep():
        while True: c.pthread_mutex_lock(lock)  # a second time it never returns
    def nap():
        time.sleep(600)
    print("begun", flush=True)
    if rank == 0:
        nap()
    while not os.path.exists({heard!r}): time.sleep(0.02)
    deep()
"""
FLAGS = "-np 2 --backend none --launcher torchrun"


@pytest.fixture(scope="module")
def plain(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist loaded."""
    shared_kernel.run("%load_ext nbdist")
    return shared_kernel


@pytest.fixture
def job(plain: Kernel, tmp_path: Path) -> Iterator[str]:
    """Start a job whose rank 0 sleeps while its rank 1 holds the GIL; return its id."""
    heard = tmp_path / "heard"
    cell = plain.run(distributed(STUCK.format(heard=str(heard)), f"{FLAGS} --async"))
    plain.expect("begun", 60, cell)
    plain.run("import nbdist, time; job = nbdist.jobs()[-1]")
    plain.run("while {0, 1} - job.pulses.keys(): time.sleep(0.02)")
    heard.touch()
    yield plain.run("print(job.id)").stdout.strip()
    plain.run("job.cancel(); job.until_end(100)", timeout=60)


def test_a_scripts_ranks_tell_where_they_are(plain: Kernel, job: str) -> None:
    plain.run("while 'GIL' not in (found := job.stacks())[1]: time.sleep(0.2)")
    said = plain.run("%dist stacks").stdout
    sleeps, _, stuck = said.partition(f"=== job {job}, rank 1 ===")
    assert sleeps.startswith(f"=== job {job}, rank 0 ===\nmain thread:\n")
    assert re.search(r'File "Cell In\[\d+\]", line 7, in nap', sleeps)
    assert "rank holds the GIL; innermost frame first" in stuck
    assert re.search(r"line \d+ in deep", stuck)
    assert plain.run(f"%dist stacks {job}").stdout == said.replace(f"job {job}, ", "")
    assert job in complete(plain, "%dist stacks ")


def test_what_has_no_stacks_is_told(plain: Kernel) -> None:
    assert "there is no cluster yet" in shown(plain.run("%dist stacks", check=False))
    plain.run(distributed("print(rank)", FLAGS))
    last = plain.run("import nbdist; print(nbdist.jobs()[-1].id)").stdout.strip()
    cell = plain.run(f"%dist stacks {last}", check=False)
    assert f"job {last} has ended: done" in shown(cell)
