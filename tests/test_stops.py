"""Stops: told truly, quick, and heeded by all that a cell has called."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import ended_in_time, shown, stopped_by_button
from tests.helpers.notebook import distributed, new_ranks, on_ranks, plain, printed_by
from tests.helpers.processes import command, family
from tests.helpers.waiting import until

if TYPE_CHECKING:
    import psutil

    from tests.helpers.kernel import Kernel

STUCK = "import ctypes\nctypes.PyDLL(None).sleep(600)"
"""C code that holds the GIL."""
SLEEPS = {
    "os.system": "os.system('sleep 4711')",
    "one after the other": "while True: os.system('sleep 4711')",
    "run": "subprocess.run(['sleep', '4711'])",
    "a pipeline": "subprocess.run('sleep 4711 | cat', shell=True)",
    "a thread": """
        import threading
        thread = threading.Thread(target=os.system, args=('sleep 4711',))
        thread.start()
        thread.join()
    """,
    "a fork": """
        import multiprocessing
        asleep = multiprocessing.get_context('fork').Process(target=os.system, args=('sleep 4711',))
        asleep.start()
        asleep.join()
    """,
}


@pytest.fixture
def cluster(notebook: Kernel) -> Kernel:
    """Return a kernel with two ranks, which may be new, and what the tests need on them."""
    imports = "import os, subprocess, time\nimport torch, torch.distributed as dist"
    on_ranks(notebook, imports, "-np 2 --launcher engines --backend ddp")
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


@pytest.mark.parametrize("caught", ["except KeyboardInterrupt", "finally"])
def test_one_press_interrupts_once_so_that_a_cell_can_save_what_it_has(
    cluster: Kernel, caught: str
) -> None:
    cluster.start(
        distributed(f"""
            print('in', flush=True)
            try:
                while True: dist.all_reduce(torch.ones(1))
            {caught}:
                for _ in range(15): time.sleep(0.1)  # an interrupt would break it off
                print("saved")
        """)
    )
    cluster.expect("in\n")
    cluster.interrupt()
    assert "killed" not in shown(cluster.wait(20))
    for rank in (0, 1):
        assert printed_by(cluster, rank).endswith("saved\n")


def test_another_press_breaks_off_what_has_caught_the_first(cluster: Kernel) -> None:
    cluster.start(
        distributed("""
            print('in', flush=True)
            try: time.sleep(60)
            except KeyboardInterrupt: time.sleep(60)
        """)
    )
    cluster.expect("in\n")
    cluster.interrupt()
    cluster.expect("Ranks 0-1 have caught the interrupt", 20)
    cluster.interrupt()
    stopped = cluster.wait(20)
    assert "Ranks 0-1 were stopped at cell line 4." in shown(stopped)
    assert "killed" not in shown(stopped)


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


def sleepers(kernel: Kernel) -> list[psutil.Process]:
    """Return the programs that cells of these tests have started."""
    return [each for each in family(kernel) if command(each) == ["sleep", "4711"]]


@pytest.mark.parametrize("way", SLEEPS)
def test_a_stop_reaches_the_programs_that_a_cell_waits_for(cluster: Kernel, way: str) -> None:
    on_ranks(cluster, "kept = 41")
    cluster.start(distributed(SLEEPS[way]))
    until(lambda: len(sleepers(cluster)) == 2)
    pressed = time.monotonic()
    cluster.interrupt()
    stopped = cluster.wait(20)
    ended_in_time(stopped, pressed, 3)
    assert "The cell was interrupted." in shown(stopped)
    assert "was killed" not in shown(stopped)
    until(lambda: not sleepers(cluster))
    assert on_ranks(cluster, "print(kept)").stdout == "41\n"


def test_a_fault_ends_the_programs_that_other_ranks_wait_for(cluster: Kernel) -> None:
    on_ranks(cluster, "kept = 41")
    failed = on_ranks(
        cluster, "if rank: raise ValueError('own')\nos.system('sleep 4711')", check=False
    )
    assert "Rank 1 failed: ValueError: own" in failed.error
    assert "was killed" not in shown(failed)
    assert on_ranks(cluster, "print(kept)").stdout == "41\n"


def test_a_stop_leaves_alone_what_is_none_of_the_cells_programs(cluster: Kernel) -> None:
    on_ranks(cluster, "server = subprocess.Popen(['sleep', '4711'])")
    on_ranks(
        cluster,
        """
        class Rows(torch.utils.data.Dataset):
            def __len__(self): return 64
            def __getitem__(self, row): return row
        loader = torch.utils.data.DataLoader(Rows(), 2, num_workers=1, persistent_workers=True)
        def train():
            while True:
                for batch in loader: pass
    """,
    )
    stopped = stopped_by_button(
        cluster, "apart = subprocess.Popen(['sleep', '4711'], start_new_session=True)\ntrain()", 0.2
    )
    assert not re.search("Error|worker", stopped.stdout + stopped.stderr)
    # Not read again: torch's own loader may be stopped where it cannot go on.
    left = "print(server.poll(), apart.poll(), loader._iterator._workers[0].is_alive())"
    assert on_ranks(cluster, left).stdout == "None None True\n"
    on_ranks(
        cluster,
        "for each in (server, apart): each.kill(); each.wait()\ndel loader",
    )


def test_a_stop_of_a_script_reaches_its_programs_too(cluster: Kernel) -> None:
    flags = "-np 2 --launcher torchrun --backend none"
    cluster.start(distributed("import os\nos.system('sleep 4711')", flags))
    until(lambda: len(sleepers(cluster)) == 2)
    pressed = time.monotonic()
    cluster.interrupt()
    stopped = cluster.wait(20)
    ended_in_time(stopped, pressed, 2)
    assert "The cell was interrupted." in shown(stopped)


AFTERWARDS = {
    "a function": "dist.all_reduce(late)",
    "a group's method": "dist.group.WORLD.allreduce(late).wait()",
    "a functional collective": "funcol.all_reduce(late, 'sum', dist.group.WORLD) + 0",
    "another thread": "ThreadPoolExecutor(1).submit(dist.all_reduce, late).result()",
    "backward": "model(torch.ones(2, 4)).sum().backward()",
    "new_group": "dist.new_group([0, 1])",
}
BEFORE = {"backward": "dist.all_reduce(torch.ones(5))", "new_group": "dist.new_group([1, 0])"}


@pytest.mark.parametrize("kind", AFTERWARDS)
def test_no_collective_behind_a_caught_interrupt_pairs_with_an_earlier_one(
    cluster: Kernel, kind: str
) -> None:
    on_ranks(
        cluster,
        """
        from concurrent.futures import ThreadPoolExecutor
        from torch.distributed import _functional_collectives as funcol
        late = torch.ones(1) * (rank + 1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        model(torch.ones(2, 4)).sum().backward()
    """,
    )
    stopped = stopped_by_button(
        cluster,
        f"""
        try:
            if rank == 1: {BEFORE.get(kind, "dist.all_reduce(torch.ones(1))")}
            while True: pass
        except KeyboardInterrupt:
            {AFTERWARDS[kind]}
        """,
        0.2,
    )
    told = "Rank 0 was stopped where a collective begins after the stop at cell line 8."
    assert told in shown(stopped)
    regained = """
        model(torch.ones(2, 4)).sum().backward()
        total = torch.ones(1)
        dist.all_reduce(total)
        print(float(late), float(total))
    """
    assert on_ranks(cluster, regained).stdout == "1.0 2.0\n"


def test_what_a_cell_began_before_its_interrupt_it_may_still_wait_for(cluster: Kernel) -> None:
    stopped = stopped_by_button(
        cluster,
        """
        total = torch.ones(1)
        begun = dist.all_reduce(total, async_op=True)
        try:
            while True: pass
        except KeyboardInterrupt:
            begun.wait()
            raise
        """,
        0.2,
    )
    assert "after the stop" not in shown(stopped)
    again = "print(float(total))\ndist.all_reduce(total)\nprint(float(total))"
    assert on_ranks(cluster, again).stdout == "2.0\n4.0\n"
