"""Runs a cell in the notebook's own kernel, which is then the only rank. Kernel's main thread.

`InsideRunner` is a `CellRunner` for the notebook's shell: shell, names and output are the
notebook's, and are restored after the cell. The hub's thread calls `doing`, `stacks` and
`interrupt`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import traceback
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from nbdist.rank.looking import vitals
from nbdist.rank.metrics import logger, pace, progress
from nbdist.rank.metrics.meter import Meter
from nbdist.rank.metrics.resource_file import Resources
from nbdist.rank.running import rank_output
from nbdist.rank.running.execute import CellRunner
from nbdist.rank.running.mirror import PROGRAM
from nbdist.wire.messages import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.wire.messages import Display, Done, Run

T = TypeVar("T")
OURS = ("rank", "local_rank", "world_size", "device")
"""In a cell these names have the rank's values, never the notebook's."""


class _Here:
    """Replaces a rank's mirror: a cell in the kernel has the notebook's settings already."""

    def follow(self, run: Run) -> None:
        """Do nothing."""


class InsideRunner(CellRunner):
    """Runs one cell in the notebook's shell.

    Parameters
    ----------
    shell
        The notebook's shell.
    names
        The names that are defined for the cell.
    device
        The description of the cell's devices.
    """

    own = False

    def __init__(self, shell: InteractiveShell, names: dict[str, Any], device: str) -> None:
        super().__init__(0, shell, _Here(), names)
        self._device, self._meter = device, Meter()
        self._resources: Resources | None = None
        self._kernels = {each.ident for each in threading.enumerate() if each.ident} - {self.main}

    def run_here(self, run: Run, send: Callable[[Display | Pulse], None]) -> Done:
        """Run a cell to its end; pass its displays and its last pulse to `send`."""
        self.start(send)
        with rank_output.given_back(), self._names_lent(), _arguments_lent(run.arguments):
            logger.begin(run.logs, run.job, 0)
            self._resources = resources = Resources(run.logs, run.job, 0, run.began)
            try:
                done = _complete(self.run(run, lambda: True))
            finally:
                logger.end()
                resources.end()
            pulse = self.doing(run.job)
            paces, bars = pace.paces(), progress.end()
            send(msgspec.structs.replace(pulse, bars=bars, paces=paces))
        self._log.close()
        return done

    @contextmanager
    def _names_lent(self) -> Iterator[None]:
        """Replace the notebook's values of `OURS` by the rank's meanwhile, and restore them."""
        space = self._shell.user_ns
        kept = {name: space.pop(name) for name in OURS if name in space}
        try:
            yield
        finally:
            for name, value in kept.items():
                if space.get(name) is self._names[name]:
                    space[name] = value
                    self._shell.user_ns_hidden.pop(name, None)

    def _questions(self) -> AbstractContextManager[None]:
        return nullcontext()  # in the kernel the user can answer

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        self._aborted = not self._showing
        super()._on_sigint(signum, frame)

    def doing(self, job: str) -> Pulse:
        """Return what the cell is doing. Any thread, one at a time."""
        taken = self._meter.read()
        if self._resources is not None:
            try:
                self._resources.look(taken)
            except Exception:  # an error of another library: the cell goes on
                traceback.print_exc()
                self._resources = None
        return Pulse(
            job, self.line(), vitals.where(self.main), None, taken, progress.bars(), self._device
        )

    def stacks(self) -> str:
        """Return the stacks of the cell. Any thread."""
        return vitals.stacks(self.main, self._kernels, self.cell_file, self.named)


@contextmanager
def _arguments_lent(arguments: list[str]) -> Iterator[None]:
    """Replace the kernel's arguments by the cell's meanwhile."""
    kept, sys.argv = sys.argv, [PROGRAM, *arguments]
    try:
        yield
    finally:
        sys.argv = kept


def _complete(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, although the kernel's own loop is running on this thread."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    inner = asyncio.new_event_loop()
    try:
        return inner.run_until_complete(work)
    finally:
        inner.close()
        asyncio._set_running_loop(outer)


class Signals:
    """Notices interrupts at once, also while the main thread is inside a C call.

    Python's own handlers run on the main thread, and so only after that call.
    """

    def __init__(self) -> None:
        self.socket, self._written = socket.socketpair()
        for each in (self.socket, self._written):
            each.setblocking(False)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Have Python write signals to the socket meanwhile. Main thread."""
        kept = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(kept)

    def interrupted(self) -> bool:
        """Return whether an interrupt has come since the last call. Hub's thread."""
        try:
            return signal.SIGINT in self.socket.recv(4096)
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the sockets."""
        self.socket.close()
        self._written.close()


def in_main_thread() -> bool:
    """Whether this is the main thread of the process that imported us, not a fork or a subshell."""
    return threading.current_thread() is threading.main_thread() and os.getpid() == _PID


_PID = os.getpid()
