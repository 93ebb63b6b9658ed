"""A real Jupyter kernel, used as a front end uses it.

`Kernel` starts an ipykernel process and talks to it over its channels. Two threads use a `Kernel`.
The test's thread owns the shell and control channels. A reader thread owns iopub and notes the time
of every message, so a test may sleep, or signal processes, while a cell runs. One condition guards
what both threads use: the cells and the registry of displays.

Every wait has a deadline (see `tests.helpers.waiting`). If it fails, the message has all that was
seen until then.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager

from nbdist.settings import Settings
from tests.helpers.cell import Cell, Output
from tests.helpers.waiting import Deadline, allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

KERNEL_MARK = "NBDIST_TEST_KERNEL"
"""The environment variable by which the check for leaks finds the kernel of a process."""

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
# Below the ports that systems choose themselves, and different for each worker, so no other process
# takes a port between its choice and the kernel's bind.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
OWN_PORTS = range(10_000 + WORKER, 32_000, WORKERS)
PORTS = itertools.cycle(random.sample(OWN_PORTS, len(OWN_PORTS)))

LIMITS = {
    "NBDIST_START_SECONDS": Settings.start_seconds,
    "NBDIST_FORM_SECONDS": Settings.form_seconds,
    "NBDIST_GRACE_SECONDS": Settings.grace_seconds,
}
"""nbdist's own time limits, in seconds on an idle machine."""

open_kernels: dict[str, Kernel] = {}
"""The kernels that may have processes and files now, by their marks."""


def limits() -> dict[str, str]:
    """Return nbdist's own time limits, longer on a slow machine, like those of the tests."""
    return {name: f"{allowed(seconds):g}" for name, seconds in LIMITS.items()}


class KernelGoneError(AssertionError):
    """The kernel process ended while a test waited for it."""


class LateError(AssertionError):
    """The kernel did not do what a test waited for before the deadline."""


def free_port() -> int:
    """Return a free port, which only callers of this function get."""
    while True:
        port = next(PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Kernel:
    """One kernel process and the cells run in it.

    Parameters
    ----------
    home : Path
        The folder for the state and log of this kernel, its ``NBDIST_HOME``.
    env : mapping, optional
        Environment variables in addition to those of the test.
    cwd : Path, optional
        The working directory of the kernel.
    within : sequence of str, optional
        A command that runs the kernel's command line, which is appended to it.
    """

    def __init__(
        self,
        home: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self.home = home
        self.mark = uuid.uuid4().hex
        self.cells: dict[str, Cell] = {}
        self._news = threading.Condition()
        self._displays: dict[str, list[Output]] = {}
        self._last = ""
        self._closing = threading.Event()
        home.mkdir(parents=True, exist_ok=True)
        ours = {"NBDIST_HOME": str(home), KERNEL_MARK: self.mark}
        self._env = {**os.environ, **ours, **limits(), **(env or {})}
        self._cwd = str(cwd or home)
        self._log_path = home / "kernel.log"
        ports = {f"{name}_port": free_port() for name in CHANNELS}
        manager: Any = KernelManager(kernel_name="python3", cache_ports=False, **ports)
        manager.shutdown_wait_time = 60  # after half of this time the kernel gets a signal
        self._manager = manager
        if within:
            spec = self._manager.kernel_spec
            spec.argv = [*within, sys.executable, *spec.argv[1:]]
        open_kernels[self.mark] = self
        with self._log_path.open("ab") as log:
            self._manager.start_kernel(env=self._env, cwd=self._cwd, stdout=log, stderr=log)
        self._connect()

    def _connect(self) -> None:
        self._client: Any = self._manager.client()
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=allowed(60))
        except RuntimeError as error:
            raise KernelGoneError(f"The kernel did not come up: {error}\n{self.log()}") from error
        self._closing.clear()
        self._reader = threading.Thread(target=self._read, name="test-kernel-iopub", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the kernel."""
        return int(self._manager.provisioner.pid)

    @property
    def alive(self) -> bool:
        """Whether the kernel process runs."""
        return bool(self._manager.is_alive())

    @property
    def cell(self) -> Cell:
        """The cell started last."""
        return self.cells[self._last]

    def log(self) -> str:
        """Return the end of what the kernel process has written to its stdout and stderr."""
        text = self._log_path.read_text(errors="replace")
        return f"--- kernel log ---\n{text[-4000:]}" if text else ""

    def run(self, code: str, timeout: float = 60, *, check: bool = True) -> Cell:
        """Run a cell to its end; with `check`, an error in the cell fails the test.

        Parameters
        ----------
        code : str
            The cell, magics included.
        timeout : float
            Seconds that the cell may take on an idle machine.
        check : bool
            False for a cell that is meant to fail.
        """
        cell = self.start(code)
        self.wait(timeout)
        if check and not cell.ok:
            raise AssertionError(f"The cell failed.\n{cell.seen()}\n{self.log()}")
        return cell

    def start(self, code: str) -> Cell:
        """Send a cell and return at once."""
        with self._news:
            cell = Cell(code)
            self._last = self._client.execute(code, stop_on_error=False)
            self.cells[self._last] = cell
        return cell

    def wait(self, timeout: float = 60, cell: Cell | None = None) -> Cell:
        """Wait until a cell has ended; by default the last one."""
        cell = cell or self.cell
        self.until(lambda: cell.done, timeout, cell)
        return cell

    def expect(self, text: str, timeout: float = 60, cell: Cell | None = None) -> Cell:
        """Wait until a text has appeared in the cell, on a stream or in a display."""
        cell = cell or self.cell
        self.until(
            lambda: text in cell.text or text in cell.stdout or text in cell.stderr, timeout, cell
        )
        return cell

    def until(
        self, condition: Callable[[], bool], timeout: float, cell: Cell | None = None
    ) -> None:
        """Wait until a condition holds that depends on messages of the kernel."""
        cell = cell or self.cell
        deadline = Deadline(timeout)
        while True:
            self._take_replies()
            with self._news:
                if condition():
                    return
                self._news.wait(0.02)
            if not self.alive:
                raise KernelGoneError(f"The kernel ended.\n{cell.seen()}\n{self.log()}")
            if deadline.over:
                late = f"Waited {deadline.took:.1f} s in vain."
                raise LateError(f"{late}\n{cell.seen()}\n{self.log()}")

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    def stop(self, seconds: float = 30) -> None:
        """Interrupt a running cell, as after a failed test, so that the next cell can run."""
        if not self.alive:
            return
        self._take_replies()
        if not self._idle():
            self.interrupt()
            with suppress(LateError, KernelGoneError):
                self.until(self._idle, seconds)

    def _idle(self) -> bool:
        return all(cell.done for cell in self.cells.values())

    def sigkill(self) -> None:
        """Kill the kernel process alone, so that it cannot clean up."""
        os.kill(self.pid, signal.SIGKILL)
        self._close(now=True)

    def restart(self) -> None:
        """Restart the kernel as JupyterLab's menu does; the ports stay the same."""
        self._disconnect()
        self.cells.clear()  # running cells get no answer any more
        with self._log_path.open("ab") as log:
            self._manager.restart_kernel(stdout=log, stderr=log)
        self._connect()

    def shutdown(self) -> None:
        """End the kernel as a front end does, if it has not ended already."""
        self._close(now=False)

    def _close(self, *, now: bool) -> None:
        if self.mark not in open_kernels:
            return
        self._disconnect()
        self._manager.shutdown_kernel(now=now)
        del open_kernels[self.mark]

    def _disconnect(self) -> None:
        self._closing.set()
        self._reader.join(allowed(5))
        self._client.stop_channels()

    def _take_replies(self) -> None:
        """Take the answers to cells. Only in the test's thread, which owns the shell channel."""
        while True:
            try:
                message = self._client.get_shell_msg(timeout=0)
            except queue.Empty:
                return
            cell = self.cells.get(message["parent_header"].get("msg_id"))
            if cell is not None and message["msg_type"] == "execute_reply":
                cell.reply = message["content"]

    def _read(self) -> None:
        """Take the messages of iopub. Only in the reader thread, which owns this channel."""
        socket = self._client.iopub_channel.socket
        while not self._closing.is_set():
            if not socket.poll(100):
                continue
            # Not by get_iopub_msg(), which makes an event loop in this thread that is never closed.
            _, message = self._client.session.recv(socket)
            with self._news:
                cell = self.cells.get(message["parent_header"].get("msg_id"))
                if cell is not None:
                    content = message["content"]
                    if message["buffers"]:
                        content |= {"buffers": [bytes(part) for part in message["buffers"]]}
                    self._deliver(cell, message["msg_type"], content)
                self._news.notify_all()

    def _deliver(self, cell: Cell, kind: str, content: dict[str, Any]) -> None:
        if kind == "status":
            if content["execution_state"] == "idle":
                cell.seconds = time.monotonic() - cell.sent
        elif kind != "execute_input":
            out = cell.receive(kind, content)
            if out is not None and out.display_id is not None:
                self._register(out, out.display_id)

    def _register(self, out: Output, display_id: str) -> None:
        """Remember a display, and update all earlier displays with the same id."""
        shown = self._displays.setdefault(display_id, [])
        for earlier in shown:
            earlier.text, earlier.data = out.text, out.data
        if out.kind != "update":
            shown.append(out)
