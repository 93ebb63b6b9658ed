"""The hub's thread: one asyncio event loop per process, started when first needed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from nbdist.errors import NbdistError
from nbdist.machine import leftovers
from nbdist.machine.process_lives import BEAT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from concurrent.futures import Future

T = TypeVar("T")
LOOK_SECONDS = 0.2


class HubLoop:
    """Runs coroutines on the hub's thread, which alone touches the hub's objects."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Named, so that these threads can be left out of the stacks of a cell in this process.
        self.loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="nbdist-hub"))
        self.loop.call_soon(self._beat)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="nbdist-hub", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            # asyncio lets these two exceptions end the loop; then all waits for the hub would hang.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def _beat(self) -> None:
        self.loop.call_later(BEAT_SECONDS, self._beat)
        leftovers.beat()

    @property
    def ours(self) -> bool:
        """Whether this process started the thread (a fork has none)."""
        return self._pid == os.getpid()

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` on the hub's thread and wait for its result. Any other thread.

        Raises
        ------
        NbdistError
            In a process forked from the one that has the cluster.
        """
        future = self.soon(work)
        try:
            return _result(future, timeout)
        except BaseException:  # the end of the wait cancels the work, too
            future.cancel()
            raise

    def soon(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the hub's thread without waiting; the errors are those of `wait`."""
        if not self.ours:
            work.close()
            msg = (
                "this process was forked from the notebook's kernel, which owns the cluster; "
                "use the cluster from the notebook itself"
            )
            raise NbdistError(msg)
        return asyncio.run_coroutine_threadsafe(work, self.loop)


def _result(future: Future[T], timeout: float | None) -> T:
    """Wait in short slices, as a signal just before a wait does not end the wait."""
    until = time.monotonic() + (math.inf if timeout is None else timeout)
    while not future.done() and (left := until - time.monotonic()) > 0:
        wait([future], timeout=min(LOOK_SECONDS, left))
    return future.result(0)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay an interrupt until the block has ended, so that what it starts is not lost.

    Any thread may use it; signals reach only the main thread.
    """
    kept = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(kept):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)
    if came:
        kept(signal.SIGINT, None)


_making = threading.Lock()
"""Held while the thread is created, so that there is only one."""


@functools.cache
def _only() -> HubLoop:
    return HubLoop()


def hub_loop() -> HubLoop:
    """Return this process's hub thread."""
    with _making:
        return _only()
