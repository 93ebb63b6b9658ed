"""The harness itself: what a kernel shows is seen, and what a test leaves behind is found."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.helpers.kernel import Kernel, KernelGoneError, LateError
from tests.helpers.leaks import SESSION, SESSION_MARK, SHARED_MEMORY, Watch, is_tracked_beside
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from pathlib import Path

ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(child.pid)
"""


def test_streams_results_and_errors_are_seen_in_order(shared_kernel: Kernel) -> None:
    cell = shared_kernel.run(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7\nraise ValueError('no')",
        check=False,
    )
    assert cell.stdout == "out\n"
    assert cell.stderr == "err\n"
    assert cell.error == "ValueError: no"
    assert [out.kind for out in cell.events][-1] == "error"
    assert not cell.ok
    assert shared_kernel.run("6 * 7").text == "42\n"


def test_a_failing_cell_fails_the_test(shared_kernel: Kernel) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        shared_kernel.run("1 / 0")


def test_displays_are_updated_from_later_cells(shared_kernel: Kernel) -> None:
    cell = shared_kernel.run("handle = display('first', display_id='x')\nhandle.update('second')")
    assert cell.text == "'second'\n"
    shared_kernel.run("handle.update('third')")
    assert cell.text == "'third'\n"
    assert [(out.kind, out.text) for out in cell.events] == [
        ("display", "'first'"),
        ("update", "'second'"),
    ]


def test_cleared_output_is_gone_when_the_next_comes(shared_kernel: Kernel) -> None:
    cell = shared_kernel.run(
        "from IPython.display import clear_output\n"
        "for number in range(3):\n"
        "    print(number)\n"
        "    clear_output(wait=True)\n"
    )
    assert cell.text == "2\n"
    assert cell.stdout == "0\n1\n2\n"


def test_interrupt_ends_a_running_cell(shared_kernel: Kernel) -> None:
    cell = shared_kernel.start("import time\nprint('running', flush=True)\ntime.sleep(600)")
    shared_kernel.expect("running")
    shared_kernel.interrupt()
    shared_kernel.wait(10)
    assert cell.error.startswith("KeyboardInterrupt")


def test_a_deadline_tells_what_was_seen(shared_kernel: Kernel) -> None:
    shared_kernel.start("import time\nprint('so far', flush=True)\ntime.sleep(600)")
    shared_kernel.expect("so far")
    with pytest.raises(LateError, match="so far"):
        shared_kernel.wait(0.1)
    shared_kernel.interrupt()
    shared_kernel.wait()


def test_restart_forgets_variables(kernel: Kernel) -> None:
    kernel.run("kept = 1")
    kernel.restart()
    assert kernel.run("kept", check=False).error.startswith("NameError")


def test_a_kernel_that_ends_is_noticed(kernel: Kernel) -> None:
    kernel.start("import os; os._exit(3)")
    with pytest.raises(KernelGoneError):
        kernel.wait(20)


def test_an_orphan_is_found_by_name_and_removed(kernel: Kernel, scratch: Path) -> None:
    watch = Watch(scratch, grace=0.5)
    pid = int(kernel.run(ORPHAN).stdout)
    assert watch.check() == []  # its kernel is still there
    kernel.sigkill()
    (line,) = watch.check()
    assert line.startswith(f"process {pid} ")
    assert "time.sleep(600)" in line
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], allowed(5))
    assert watch.check() == []


def test_a_process_that_leaves_in_time_is_forgiven(scratch: Path) -> None:
    watch = Watch(scratch)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"]):
        assert watch.check() == []


def test_semaphores_are_nobodys_while_a_worker_beside_tracks_its_own(scratch: Path) -> None:
    watch = Watch(scratch, grace=0.2)
    semaphore = SHARED_MEMORY / f"sem.mp-{SESSION[:8]}"
    semaphore.write_text("x")
    command = [sys.executable, "-c", "input()", "multiprocessing.resource_tracker, by name"]
    tracker = subprocess.Popen(command, stdin=subprocess.PIPE, env={SESSION_MARK: "another"})
    try:
        assert not [line for line in watch.check() if semaphore.name in line]
    finally:
        tracker.communicate(b"\n")
    if not is_tracked_beside():  # a real one
        assert watch.check() == [f"file {semaphore}"]
    semaphore.unlink(missing_ok=True)


def test_files_segments_and_threads_are_found(scratch: Path) -> None:
    watch = Watch(scratch, grace=0.2)
    segment = SHARED_MEMORY / f"nbdist-{SESSION}"
    cluster = scratch / "homes" / "tests" / "clusters" / "left"
    stop = threading.Event()
    cluster.mkdir(parents=True)
    (scratch / "tmp" / "left").write_text("x")
    segment.write_text("x")
    thread = threading.Thread(target=stop.wait, name="nbdist-left", daemon=True)
    thread.start()
    lines = watch.check()
    stop.set()
    thread.join()
    assert sorted(lines) == sorted(
        [
            f"file {cluster}",
            f"file {scratch / 'tmp' / 'left'}",
            f"file {segment}",
            "thread nbdist-left in the test process",
        ]
    )
    assert watch.check() == []
