"""Modules that the warm process imports because somebody asked for them, for its forks to have.

What a module does when it is imported may spoil the process for good: a thread that no fork has, a
GPU that is open, a torch operation that makes forks hang. So it is tried in a fork first, and what
ends there ends nothing else. The warm process's only thread.
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
from nbdist.machine.amounts import in_time
from nbdist.machine.operating_system import kill_session, why_not_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbdist.launchers.host.child_processes import Children

LEAST_SECONDS = 30.0
"""The import that follows a trial has this long at least, and not much longer than that took."""
ANSWER_BYTES = 1 << 16
WHY_CHARACTERS = 2000


class Tried(msgspec.Struct, frozen=True):
    """How an import went in a fork."""

    why: str
    """What speaks against it, '' if nothing does."""
    seconds: float = 0.0


class Preloads:
    """Follows the orders to import modules, one after the other.

    Parameters
    ----------
    children
        What forks.
    tell
        Says something to the kernel.
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
        """Import modules, as soon as what came before is done."""
        self._waiting.append(order)
        self._next()

    def stop(self, number: int) -> None:
        """Give up what has not begun, or is only tried yet."""
        self._waiting = [order for order in self._waiting if order.id != number]
        if self._trial is not None and self._trial.order.id == number:
            self._trial.end()
            self._trial = None
            self._next()

    def watched(self) -> list[int]:
        """Return the descriptor that has something to say when a trial is over."""
        return [] if self._trial is None else [self._trial.answer]

    def until(self) -> float:
        """Return when a trial has lasted too long (monotonic time)."""
        return float("inf") if self._trial is None else self._trial.until

    def look(self) -> None:
        """See whether a trial is over, and import in this process what went well."""
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
        why = _import(order, limit)
        seconds, grown = time.monotonic() - began, process.memory_info().rss - before
        edited_modules.remember(sys.modules.keys() - there)
        broken = self._settle()
        if broken and not why:
            why = f"{broken}; from now on ranks are started as fresh processes, without them"
        self._tell(Preloaded(order.id, why, seconds, max(0, grown)))

    def _let_go(self) -> None:
        for descriptor in self.watched():
            os.close(descriptor)


class Trial:
    """An import in a fork, whose end is waited for."""

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
        """Return how it went, None as long as that is open."""
        os.set_blocking(self.answer, False)
        try:
            answer = os.read(self.answer, ANSWER_BYTES)
        except BlockingIOError:
            if time.monotonic() < self.until:
                return None
            self.end()
            return Tried(f"the import was not over after {in_time(self.order.limit)}")
        self.end()
        if answer:
            return msgspec.msgpack.decode(answer, type=Tried)
        return Tried("a process that tried the import has died of it")

    def end(self) -> None:
        """End the fork, and all it may have started; it is reaped with the others."""
        os.close(self.answer)
        kill_session(self._pid)


def _try(order: Preload) -> Tried:
    """Import in this fork, and see whether forks of it would do as ranks."""
    began = time.monotonic()
    why = _import(order, 0)  # who waits for this fork keeps to the limit, and says so
    seconds = time.monotonic() - began
    return Tried((why or why_not_fork() or threads_left())[:WHY_CHARACTERS], seconds)


def threads_left() -> str:
    """Say which threads an import has started that a fork would lack, '' if there are none."""
    ours = threading.current_thread()
    names = ", ".join(thread.name for thread in threading.enumerate() if thread is not ours)
    if names:
        return f"the import starts threads, which forked ranks would lack: {names}"
    # Those of OpenBLAS end before a fork and come back when they are needed; others do not.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count = psutil.Process().num_threads() - 1
    return f"the import starts threads ({count}), which forked ranks would lack" if count else ""


def _import(order: Preload, limit: float) -> str:
    """Import modules as the notebook would; return why that failed, '' if it did not."""
    path, sys.path[:] = sys.path[:], order.sys_path
    importlib.invalidate_caches()
    name = ""
    try:
        with _environ(order.environ), _within(limit):
            for name in order.modules:
                importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name and f"{name}.".startswith(f"{err.name}."):
            return f"there is no module {err.name}"
        return f"importing {name} failed: {err}"
    except BaseException as err:  # SystemExit, too: it must not be our end
        return f"importing {name} failed: {type(err).__name__}: {err}"
    finally:
        sys.path[:] = path
    return ""


@contextlib.contextmanager
def _environ(changes: dict[str, str | None]) -> Iterator[None]:
    """Set the notebook's environment: modules read it when they are imported."""
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
    """Raise `TimeoutError` in code that takes longer; there is no limit if it is 0."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it was not over after {in_time(seconds)}")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
