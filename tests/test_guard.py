"""The guard on another host: it ends as what it guards, and leaves nothing when it is to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from nbdist.launchers.scripts import guard, ssh
from tests.helpers.waiting import allowed, until
from tests.test_orphans import all_end

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.starts_processes


@pytest.mark.parametrize(
    ("ends", "code", "folder"),
    [("exit 3", 3, "new/temp"), ("kill -9 $$", 137, "temp"), ("exit 0", 0, "file/temp")],
    ids=["code", "signal", "no folder"],
)
def test_a_guard_ends_as_what_it_guards_and_clears_its_folder(
    tmp_path: Path, ends: str, code: int, folder: str
) -> None:
    (tmp_path / "file").touch()
    temp = tmp_path / folder
    does = f"[ -d $TEMP ] && touch had; touch ran; {ends}"
    started = guard.Started(
        "", guard.Order(["sh", "-c", does], {"TEMP": str(temp)}, str(tmp_path), str(temp))
    )
    assert started.process.wait(allowed(30)) == code
    started.close()
    assert (tmp_path / "ran").exists()
    assert (tmp_path / "had").exists() == (folder != "file/temp")
    assert not temp.exists()


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_a_guard_ends_also_what_has_left_its_session(tmp_path: Path, how: str) -> None:
    does = "setsid --fork sleep 600; touch begun; sleep 600"
    started = guard.Started("", guard.Order(["sh", "-c", does], {}, str(tmp_path), ""))
    until((tmp_path / "begun").exists, 30)
    processes: list[psutil.Process] = []

    def in_two_sessions() -> bool:  # `setsid` returns before its child has left the first
        processes[:] = psutil.Process(started.process.pid).children(recursive=True)
        try:
            return len({os.getsid(process.pid) for process in processes}) == 2
        except ProcessLookupError:
            return False

    until(in_two_sessions, 30)
    if how == "SIGTERM":
        started.process.terminate()
    else:
        started.close()
    assert started.process.wait(allowed(30)) == 128 + signal.SIGTERM
    started.close()
    all_end(processes)


def test_a_guard_that_is_told_twice_to_end_leaves_nothing(tmp_path: Path) -> None:
    does = (
        "trap 'touch told' TERM; setsid --fork sleep 600; touch begun; while :; do sleep 0.1; done"
    )
    started = guard.Started("", guard.Order(["sh", "-c", does], {}, str(tmp_path), ""))
    until((tmp_path / "begun").exists, 30)
    processes = psutil.Process(started.process.pid).children(recursive=True)
    started.process.terminate()
    until((tmp_path / "told").exists, 30)  # it waits for what does not heed that
    started.process.terminate()
    assert started.process.wait(allowed(30)) == 128 + signal.SIGTERM
    started.close()
    all_end(processes)


TOLD_WHILE_IT_STARTS = """if True:
    import os, pathlib, signal, time
    from nbdist.launchers.scripts import guard
    start = guard._start
    def slow(order):
        child = start(order)
        while not pathlib.Path("begun").exists(): time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        return child
    guard._start = slow
    guard.main()
"""


def test_a_guard_that_is_told_to_end_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    does = "setsid --fork sleep 600; touch begun; sleep 600"
    order = guard.Order(["sh", "-c", does], {}, str(tmp_path), "")
    with subprocess.Popen(
        [sys.executable, "-c", TOLD_WHILE_IT_STARTS], cwd=tmp_path, stdin=subprocess.PIPE
    ) as guarding:
        assert guarding.stdin is not None
        guarding.stdin.write(msgspec.json.encode(order) + b"\n")
        guarding.stdin.flush()
        assert guarding.wait(allowed(30)) == 128 + signal.SIGTERM


def test_a_guard_says_what_it_cannot_start_and_starts_nothing_unasked(tmp_path: Path) -> None:
    with (tmp_path / "told").open("wb") as told:
        order = guard.Order(["no-such-program"], {}, str(tmp_path), "")
        started = guard.Started("", order, output=told.fileno())
        assert started.process.wait(allowed(30)) == 1
        started.close()
    said = (tmp_path / "told").read_text()
    assert said.startswith(f"no-such-program cannot be started in {tmp_path}: ")
    unasked = subprocess.run(
        ssh.python(guard.__name__), input=b"", capture_output=True, timeout=allowed(30), check=True
    )
    assert not unasked.stdout + unasked.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_what_a_guard_starts_takes_signals_as_usual_and_dies_with_a_killed_guard(
    tmp_path: Path,
) -> None:
    """The guard itself ignores some signals; a program would inherit that."""
    does = "grep SigIgn: /proc/self/status; exec sleep 600"
    with (tmp_path / "told").open("w+b") as told:
        order = guard.Order(["sh", "-c", does], {}, "", "")
        started = guard.Started("", order, output=told.fileno())
        until(lambda: (tmp_path / "told").read_text().endswith("\n"), 30)
    reset = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD)
    ignored = int((tmp_path / "told").read_text().split()[1], 16)
    assert not ignored & sum(1 << (signum - 1) for signum in reset)
    processes = psutil.Process(started.process.pid).children()
    assert processes
    started.process.kill()
    started.process.wait()
    started.close()
    all_end(processes)
