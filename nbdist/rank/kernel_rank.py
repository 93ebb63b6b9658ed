"""A cell that runs in the notebook's own kernel, as the one rank there is. Kernel's main thread.

`InsideRunner` does with the notebook's shell what a rank's `CellRunner` does with its own; here
shell, names and output are the notebook's, and are given back after the cell. The hub's thread
calls `doing`, `stacks` and `interrupt`.
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

    from nbdist.wire.messages import Done, Message, Run

T = TypeVar("T")
OURS = ("rank", "local_rank", "world_size", "device")
"""What a cell finds under these names is never the notebook's."""


class _Here:
    """The place of a mirror: what the notebook has is here already."""

    def follow(self, run: Run) -> None:
        """Do nothing."""


class InsideRunner(CellRunner):
    """Runs one cell in the notebook's shell.

    Parameters
    ----------
    shell
        The notebook's.
    names
        What the cell finds defined.
    device
        What it computes on, in words.
    """

    own = False

    def __init__(self, shell: InteractiveShell, names: dict[str, Any], device: str) -> None:
        super().__init__(0, shell, _Here(), names)
        self._device, self._meter = device, Meter()
        self._resources: Resources | None = None
        self._kernels = {each.ident for each in threading.enumerate() if each.ident} - {self.main}

    def run_here(self, run: Run, send: Callable[[Message], None]) -> Done:
        """Run a cell to its end; what it shows, and its last pulse, go to `send`."""
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
        """Let ours stand in the place of the notebook's, which come back afterwards."""
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
        return nullcontext()  # here somebody can answer

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        self._aborted = not self._showing
        super()._on_sigint(signum, frame)

    def doing(self, job: str) -> Pulse:
        """Return what the cell is doing. Any thread, one at a time."""
        taken = self._meter.read()
        if self._resources is not None:
            try:
                self._resources.look(taken)
            except Exception:  # another library's, in a strange container: the cell goes on
                traceback.print_exc()
                self._resources = None
        return Pulse(
            job, self.line(), vitals.where(self.main), None, taken, progress.bars(), self._device
        )

    def stacks(self) -> str:
        """Return where the cell is. Any thread."""
        return vitals.stacks(self.main, self._kernels, self.cell_file, self.named)


@contextmanager
def _arguments_lent(arguments: list[str]) -> Iterator[None]:
    """Let the cell find its own arguments in the place of the kernel's."""
    kept, sys.argv = sys.argv, [PROGRAM, *arguments]
    try:
        yield
    finally:
        sys.argv = kept


def _complete(work: Coroutine[Any, Any, T]) -> T:
    """Run this to its end, though the kernel's own loop waits below us on this thread."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    inner = asyncio.new_event_loop()
    try:
        return inner.run_until_complete(work)
    finally:
        inner.close()
        asyncio._set_running_loop(outer)


class Signals:
    """Tells of interrupts when they come, also while the main thread is inside a C call.

    Python's own handlers run on the main thread, and so only after the call.
    """

    def __init__(self) -> None:
        self.socket, self._written = socket.socketpair()
        for each in (self.socket, self._written):
            each.setblocking(False)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Have signals written to the socket meanwhile. Main thread."""
        kept = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(kept)

    def interrupted(self) -> bool:
        """Return whether an interrupt has come since the last look. Hub's thread."""
        try:
            return signal.SIGINT in self.socket.recv(4096)
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Listen no more."""
        self.socket.close()
        self._written.close()


def in_main_thread() -> bool:
    """Whether this is the main thread of the process that loaded us: no fork's, no subshell's."""
    return threading.current_thread() is threading.main_thread() and os.getpid() == _PID


_PID = os.getpid()
