"""Imports modules in the warm process on request (`%dist preload`), so that its forks have them.

The import of a module may spoil the warm process for good: a thread that forks do not have, an open
GPU, a torch operation that makes forks hang. So an import is first tried in a fork, where a crash
harms nothing else, unless its order says that it needs no trial. The warm process's only thread.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import psutil

from nbdist.launchers.host import edited_modules
from nbdist.launchers.host.protocol import Preload, Preloaded
from nbdist.machine import gpus
from nbdist.machine.amounts import in_time
from nbdist.machine.operating_system import gpu_is_open, kill_session, why_not_fork
from nbdist.machine.random_numbers import noting_unseeded
from nbdist.wire.stand_ins import without_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbdist.launchers.host.child_processes import Children

LEAST_SECONDS = 30.0
"""The least time limit of an import after its trial; a slow trial extends the limit."""
ANSWER_BYTES = 1 << 16
WHY_CHARACTERS = 2000


class Tried(msgspec.Struct, frozen=True):
    """The result of a trial import in a fork."""

    why: str
    """Why the modules must not be imported, '' if they may."""
    seconds: float = 0.0


class Preloads:
    """Executes the orders to import modules, one after the other.

    Parameters
    ----------
    children
        Forks processes.
    tell
        Sends a message to the kernel.
    settle
        Called after imports; returns why this process cannot fork ranks any more, or ''.
    """

    def __init__(
        self,
        children: Children,
        tell: Callable[[Preloaded], None],
        settle: Callable[[], str],
    ) -> None:
        self._children, self._tell, self._settle = children, tell, settle
        self._waiting: list[Preload] = []
        self._trial: Trial | None = None
        children.in_child += [self._let_go, edited_modules.forget]

    def begin(self, order: Preload) -> None:
        """Import modules as soon as the earlier orders are done."""
        self._waiting.append(order)
        self._next()

    def stop(self, number: int) -> None:
        """Cancel an order that is waiting or in its trial."""
        self._waiting = [order for order in self._waiting if order.id != number]
        if self._trial is not None and self._trial.order.id == number:
            self._trial.end()
            self._trial = None
            self._next()

    def watched(self) -> list[int]:
        """Return the file descriptor that becomes readable when the trial has ended."""
        return [] if self._trial is None else [self._trial.answer]

    def until(self) -> float:
        """Return when the time limit of the trial ends (monotonic time)."""
        return float("inf") if self._trial is None else self._trial.until

    def look(self) -> None:
        """If the trial has ended and succeeded, import its modules in this process."""
        tried = None if self._trial is None else self._trial.look()
        if self._trial is None or tried is None:
            return
        order, self._trial = self._trial.order, None
        if tried.why:
            self._tell(Preloaded(order.id, tried.why))
        else:
            self._load(order, max(LEAST_SECONDS, 5 * tried.seconds))
        self._next()

    def _next(self) -> None:
        while self._waiting and self._trial is None:
            order = self._waiting.pop(0)
            if order.tried:
                self._load(order, order.limit)
            else:
                try:
                    self._trial = Trial(order, self._children)
                except OSError as err:
                    self._tell(Preloaded(order.id, f"the import could not be tried: {err}"))

    def _load(self, order: Preload, limit: float) -> None:
        process = psutil.Process()
        edited_modules.forget()
        there, before, began = set(sys.modules), process.memory_info().rss, time.monotonic()
        with noting_unseeded():
            why = _import(order, limit)
        seconds, grown = time.monotonic() - began, process.memory_info().rss - before
        edited_modules.remember(sys.modules.keys() - there)
        broken = self._settle()
        if broken and not why:
            why = f"{broken}; from now on ranks are started as new processes, without these modules"
        self._tell(Preloaded(order.id, why, seconds, max(0, grown)))

    def _let_go(self) -> None:
        for descriptor in self.watched():
            os.close(descriptor)


class Trial:
    """A trial import in a fork."""

    def __init__(self, order: Preload, children: Children) -> None:
        self.order = order
        self.until = time.monotonic() + order.limit
        self.answer, theirs = os.pipe()

        def body() -> None:
            os.close(self.answer)
            os.write(theirs, msgspec.msgpack.encode(_try(order)))

        try:
            self._pid = children.fork(body)
        except OSError:
            os.close(self.answer)
            raise
        finally:
            os.close(theirs)

    def look(self) -> Tried | None:
        """Return the result; None while the trial is running."""
        os.set_blocking(self.answer, False)
        try:
            answer = os.read(self.answer, ANSWER_BYTES)
        except BlockingIOError:
            if time.monotonic() < self.until:
                return None
            self.end()
            return Tried(f"the import did not end within {in_time(self.order.limit)}")
        self.end()
        if answer:
            return msgspec.msgpack.decode(answer, type=Tried)
        return Tried("the import killed the process that tried it")

    def end(self) -> None:
        """End the fork and all processes in its session; `Children` reaps it."""
        os.close(self.answer)
        kill_session(self._pid)


def _try(order: Preload) -> Tried:
    """Import in this fork, and test whether forks of it could be ranks."""
    began = time.monotonic()
    why = _import(order, 0)  # no limit here: the parent keeps the time
    seconds = time.monotonic() - began
    return Tried((why or why_not_fork() or threads_left())[:WHY_CHARACTERS], seconds)


def threads_left() -> str:
    """Say which threads an import has started, which a fork would lack; '' if none."""
    ours = threading.current_thread()
    names = ", ".join(thread.name for thread in threading.enumerate() if thread is not ours)
    if names:
        return f"the import starts threads, which forked ranks would lack: {names}"
    # Fork once: OpenBLAS ends its threads before a fork and restarts them later; others remain.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count = psutil.Process().num_threads() - 1
    return f"the import starts threads ({count}), which forked ranks would lack" if count else ""


def _import(order: Preload, limit: float) -> str:
    """Import modules as the notebook would; return why this failed, '' if it succeeded."""
    path, sys.path[:] = sys.path[:], order.sys_path
    importlib.invalidate_caches()
    name = ""
    try:
        with _environ(order.environ), gpus.counted_without_torch(), _within(limit):
            for name in order.modules:
                importlib.import_module(name)
                if gpu_is_open():
                    return f"importing {name} opens the GPU, which forked ranks could not use then"
    except ModuleNotFoundError as err:
        if err.name and f"{name}.".startswith(f"{err.name}."):
            return f"there is no module {err.name}"
        return without_surrogates(f"importing {name} failed: {err}")
    except BaseException as err:  # also SystemExit, which must not end this process
        return without_surrogates(f"importing {name} failed: {type(err).__name__}: {err}")
    finally:
        sys.path[:] = path
    return ""


@contextlib.contextmanager
def _environ(changes: dict[str, str | None]) -> Iterator[None]:
    """Set the notebook's environment variables meanwhile, for modules that read them."""
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(environ: dict[str, str | None]) -> None:
    for name, value in environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in code that takes longer; 0 means no limit."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it did not end within {in_time(seconds)}")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
