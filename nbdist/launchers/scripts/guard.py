"""The guard on another host: it starts a program there, and ends it when the launcher has gone.

It is run by ssh as ``python -m nbdist.launchers.scripts.guard``. The first line of its input is an
`Order`. Its input ends with the launcher or with the connection; then the guard ends everything
that it has started.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys

import msgspec

from nbdist.launchers.scripts import ssh
from nbdist.machine.operating_system import adopt_orphans, die_with_parent, kill_descendants

LOOK_SECONDS = 0.5
END_SECONDS = 1.5
"""From SIGTERM to SIGKILL."""
STDIN = 0
SIGNALS = 128
"""A shell's exit code for a signal is the signal's number plus this."""


class Order(msgspec.Struct, frozen=True):
    """The program that the guard starts."""

    argv: list[str]
    environ: dict[str, str]
    cwd: str
    temp: str
    """A temporary folder for the job, created if possible."""


class Started:
    """A program under a guard, here or on another host, which ends when this object is closed.

    The program also ends with this process, unless a fork keeps the guard's input open.
    """

    def __init__(
        self, host: str, order: Order, options: tuple[str, ...] = (), output: int | None = None
    ) -> None:
        words = ssh.python(__name__)
        self.process = subprocess.Popen(
            ssh.command(host, words, options) if host else words,
            stdin=subprocess.PIPE, stdout=output, stderr=output,
        )  # fmt: skip
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; see its exit code
            self.process.stdin.write(msgspec.json.encode(order) + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Let the guard end the program and itself."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


def exit_code(returned: int) -> int:
    """Return the exit code that a shell would report for a process."""
    return SIGNALS - returned if returned < 0 else returned


def main() -> None:
    """Run the guard: start the program, wait for its end or the end of our input."""
    adopt_orphans()
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(STDIN, 1 << 16)
        if not read:
            return
        line += read
    order = msgspec.json.decode(line, type=Order)
    asked: list[int] = []
    # The handler must not raise: a program just started, or being ended, would be left behind.
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    child = _start(order)
    try:
        while child.poll() is None and not asked and STDIN not in _ready(woken):
            pass
    finally:
        _end_all(child)
        if order.temp:
            shutil.rmtree(order.temp, ignore_errors=True)
    sys.exit(SIGNALS + asked[0] if asked else exit_code(child.returncode))


def _ready(woken: int) -> list[int]:
    ready, _, _ = select.select([STDIN, woken], [], [], LOOK_SECONDS)
    if woken in ready:
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
    return ready


def _start(order: Order) -> subprocess.Popen[bytes]:
    if order.temp:
        with contextlib.suppress(OSError):  # multiprocessing finds another folder
            os.makedirs(order.temp, 0o700, exist_ok=True)  # noqa: PTH103  # with its parents
    os.environ.update(order.environ)
    try:
        return subprocess.Popen(
            order.argv, cwd=order.cwd or None, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_be_child,  # noqa: PLW1509  # prctl and signals
        )  # fmt: skip
    except OSError as err:
        sys.exit(f"{order.argv[0]} cannot be started in {order.cwd}: {err}")


def _be_child() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    die_with_parent()


def _end_all(child: subprocess.Popen[bytes]) -> None:
    """End the program and its remaining descendants, which have become our children."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_SECONDS)
    kill_descendants()
    child.wait()


if __name__ == "__main__":
    main()
