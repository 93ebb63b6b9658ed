"""The kernel's client of the warm process: starts it, sends orders, receives messages.

Hub's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil

from nbdist.errors import LaunchError
from nbdist.launchers.host import protocol
from nbdist.launchers.host.protocol import (
    LENGTH,
    Died,
    Order,
    Preload,
    Preloaded,
    Probed,
    Refused,
    Started,
    StopPreload,
    Warm,
)
from nbdist.machine.operating_system import environ_anywhere, oom_kills, private
from nbdist.machine.process_lives import SAME_SECONDS, started
from nbdist.rank.rank_spec import CLUSTER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nbdist.backends.groups.recovery import Recovery


class WarmProcess:
    """Starts the warm process, sends it orders, and passes on its messages."""

    def __init__(
        self,
        log: Path,
        folders: list[Path],
        tell: Callable[[Started | Died | Refused], None],
        cluster: str,
    ) -> None:
        self._cluster = cluster
        self._tell = tell
        self._log = log
        self._inbox, self._outbox = b"", bytearray()
        self._loop = asyncio.get_running_loop()
        self.children: dict[int, float] = {}
        """The pid and start time of each living child of the warm process."""
        self.warm: asyncio.Future[Warm] = self._loop.create_future()
        self.probed: asyncio.Future[Recovery] = self._loop.create_future()
        """The complete result of the probe of torch; never set without torch."""
        self._preloads: dict[int, asyncio.Future[Preloaded]] = {}
        self.gone = asyncio.Event()
        self.end = "has died"
        """How it has ended, once it is `gone`: a predicate."""
        self._oom_before = oom_kills()
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        with theirs:
            self._process = _launched(theirs, log, folders)
        self.pid = self._process.pid
        self.created = started(self.pid)
        self._loop.add_reader(self._sock, self._read)
        # A process that the notebook forks must not keep our end open when the kernel has ended.
        os.register_at_fork(after_in_child=self._close_in_fork)

    def order(self, order: Order) -> None:
        """Send an order, unless the warm process has ended (`gone`)."""
        if self.gone.is_set():
            return
        self._outbox += protocol.pack(order)
        self._send()

    def _send(self) -> None:
        """Send without blocking: the warm process does not read while it imports modules."""
        try:
            while self._outbox:
                del self._outbox[: self._sock.send(self._outbox)]
        except BlockingIOError:
            self._loop.add_writer(self._sock, self._send)
            return
        except OSError:  # `_read` notices the end
            self._outbox.clear()
        self._loop.remove_writer(self._sock)

    async def preload(self, order: Preload) -> Preloaded:
        """Let the warm process import modules; cancelling the wait cancels the import.

        Raises
        ------
        LaunchError
            If the warm process ends meanwhile.
        """
        answer: asyncio.Future[Preloaded] = self._loop.create_future()
        self._preloads[order.id] = answer
        self.order(order)
        gone = self._loop.create_task(self.gone.wait())
        try:
            over: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            del self._preloads[order.id]
            if not answer.done():
                self.order(StopPreload(order.id))
        if not answer.done():
            raise LaunchError(
                f"the warm process, which starts the ranks, has ended; {self.log_tail()}"
            )
        return answer.result()

    def _read(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._inbox += data
        while len(self._inbox) >= LENGTH:
            end = LENGTH + int.from_bytes(self._inbox[:LENGTH], "big")
            if len(self._inbox) < end:
                break
            self._hear(protocol.decode_word(self._inbox[LENGTH:end]))
            self._inbox = self._inbox[end:]

    def _hear(self, word: Warm | Probed | Preloaded | Started | Died | Refused) -> None:
        match word:
            case Warm():
                self.warm.set_result(word)
            case Probed():
                self.probed.set_result(word.recovery)
            case Preloaded():
                if word.id in self._preloads:
                    self._preloads[word.id].set_result(word)
            case Started():
                self.children[word.pid] = word.created
                self._tell(word)
            case Died():
                self.children.pop(word.pid, None)
                self._oom_before = oom_kills()  # this child's death explains the kill
                self._tell(word)
            case _:
                self._tell(word)

    def _lost(self) -> None:
        """Clean up after its end: its children die with it, we kill their descendants."""
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for pid, created in self.children.items():
            end_session(pid, created)
        end_marked(self._cluster)
        self.children.clear()
        if not self.warm.done():
            self.warm.set_exception(
                LaunchError(
                    "the warm process, which starts the ranks, ended at its own start; "
                    f"{self.log_tail()}"
                )
            )
            self.warm.exception()  # mark it as retrieved: there may be no waiter
        now = oom_kills()
        if self._oom_before is not None and now is not None and now > self._oom_before:
            self.end = "was killed, most likely by the operating system for lack of memory"
        self.gone.set()

    def log_tail(self) -> str:
        """Return the end of its log as a clause for an error message."""
        return tail_in_words(self._log)

    async def stop(self, grace: float = 3.0) -> None:
        """Close our end, upon which the warm process ends everything and itself; reap it."""
        if not self.gone.is_set():
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.gone.wait(), grace)
        if not self.gone.is_set():
            self._process.kill()
            self._lost()
        deadline = self._loop.time() + grace
        while self._process.poll() is None and self._loop.time() < deadline:
            await asyncio.sleep(0.005)

    def abandon(self, grace: float = 3.0) -> None:
        """Let the warm process clean up, and wait for its end. At exit, from any thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)

    def _close_in_fork(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()


def _launched(sock: socket.socket, log: Path, folders: list[Path]) -> subprocess.Popen[bytes]:
    """Start the warm process, which inherits this socket; its output goes to the log."""
    with open(log, "ab", opener=private) as file:
        return subprocess.Popen(
            [
                sys.executable,
                "-u",  # also makes output of C libraries appear at once, in every rank
                "-m",
                "nbdist.launchers.host.warm_process",
                str(sock.fileno()),
                str(os.getpid()),
                *map(str, folders),
            ],
            pass_fds=[sock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=log.parent,
            env=environ_anywhere(),
        )


def end_session(leader: int, created: float) -> None:
    """SIGKILL a child and its session, unless its pid belongs to another process now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if process.pid == leader and abs(started(leader) - created) > SAME_SECONDS:
                return
            # A session keeps its id while it has members, so no other session can have this id.
            if os.getsid(process.pid) == leader and started(process.pid) >= created - 1:
                os.kill(process.pid, signal.SIGKILL)


def end_marked(cluster: str) -> None:
    """SIGKILL processes that ranks of this cluster have started in sessions of their own.

    They are found by a variable in their environment. While the warm process is alive this is not
    needed, because such processes become its children.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(CLUSTER_NAME) == cluster:
                process.kill()


def tail_in_words(path: Path, lines: int = 8) -> str:
    """Return the end of a log as a clause for an error message."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        text = ""
    if not text:
        return f"its log {path} is empty"
    return f"its log {path} ends with:\n" + "\n".join(text.splitlines()[-lines:])
