"""Writes a process's file of state and listens at its socket for commands.

Runs on the event loop of the hub: in a kernel's hub thread, or in a keeper. Commands come as a line
of JSON on a Unix socket that only this user may open, and run on a thread of their own: they wait
for the hub, which must go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.errors import NbdistError
from nbdist.job import changes
from nbdist.machine.operating_system import write_whole
from nbdist.machine.process_lives import BEAT_SECONDS
from nbdist.published import state_file as records

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.published.state_file import Record

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.2
"""The least time between two versions of the state file."""
SOON_SECONDS = 0.05
"""The delay after a change, in which the hub does its own work first."""
SELDOM_SECONDS = 1.0
"""How often the file is written without a notified change."""
LONGEST_PATH = 100
"""The most bytes of a socket's path."""

Commands = dict[str, "Callable[..., Any]"]


class Request(msgspec.Struct):
    """A command from the sidebar."""

    command: str
    args: dict[str, Any] = {}


class Beacon:
    """Publishes a process from `start` to `stop`.

    Parameters
    ----------
    tell
        Returns the present state, None if there is nothing to show; called on the event loop.
    commands
        The commands by name; called on threads. Their results must fit into JSON.
    """

    def __init__(self, tell: Callable[[], Record | None], commands: Commands) -> None:
        self._tell, self._commands = tell, commands
        self.id = secrets.token_hex(6)
        self._path = Path()
        self._shown = b""
        self._beat_at = 0.0
        self._server: asyncio.Server | None = None
        self._next: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self.control = ""

    async def start(self) -> None:
        """Start to publish; errors are ignored, as only the sidebar needs the files."""
        try:
            self._path = records.folder() / f"{self.id}.json"
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            records.sweep()
        except (OSError, RuntimeError):  # or the home folder is unknown
            return
        try:
            self.control = self._socket_path()
            self._server = await asyncio.start_unix_server(self._serve, self.control)
            os.chmod(self.control, 0o600)  # noqa: PTH101  # nobody waits
        except OSError:
            log.debug("no commands are taken from outside", exc_info=True)
        changes.listeners.append(self.nudge)
        self._show()

    def _socket_path(self) -> str:
        beside = str(self._path.with_suffix(".sock"))
        if len(os.fsencode(beside)) < LONGEST_PATH:
            return beside
        temp = tempfile.gettempdir()
        place = None if len(os.fsencode(temp)) < LONGEST_PATH // 2 else "/tmp"  # noqa: S108  # 0700
        return str(Path(tempfile.mkdtemp(prefix="nbdist-", dir=place)) / "control.sock")

    def _show(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._look()
        except Exception:  # a full disk, or an error of ours: try again later
            log.debug("the state could not be shown", exc_info=True)
        self._looked_at = loop.time()
        self._next = loop.call_later(SELDOM_SECONDS, self._show)

    def nudge(self) -> None:
        """Look soon, as something may have changed. On the event loop."""
        loop = asyncio.get_running_loop()
        due = max(self._looked_at + LOOK_SECONDS, loop.time() + SOON_SECONDS)
        if self._next is not None and self._next.when() > due:
            self._next.cancel()
            self._next = loop.call_at(due, self._show)

    def _look(self) -> None:
        record = self._tell()
        if record is not None:
            record.id, record.control = self.id, self.control
        told = b"" if record is None else records.encode(record)
        if told != self._shown:
            if record is None:
                self._path.unlink(missing_ok=True)
            else:
                self._write(told)
            self._shown = told
        if time.monotonic() - self._beat_at > BEAT_SECONDS:
            self._beat_at = time.monotonic()
            self._beat()

    def _beat(self) -> None:
        """Touch our files, as other hosts cannot see the process."""
        if self.control:
            with contextlib.suppress(OSError):
                os.utime(self.control)
        if self._shown:
            try:
                os.utime(self._path)
            except FileNotFoundError:
                self._write(self._shown)

    def _write(self, told: bytes) -> None:
        try:
            write_whole(self._path, told)
        except FileNotFoundError:  # the folder was removed
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path, told)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = msgspec.json.decode(await reader.readline(), type=Request)
            command = self._commands[request.command]
            writer.write(b"{}\n")  # the command was received
            await writer.drain()
            answer = {"value": await _on_a_thread(command, request.args)}
        except NbdistError as err:
            answer = {"error": str(err)}
        except Exception as err:  # the sender must get an answer
            answer = {"error": f"{type(err).__name__}: {err}"}
        with contextlib.suppress(OSError):
            writer.write(records.encode(answer) + b"\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def stop(self, *, leave: Record | None = None) -> None:
        """Stop serving commands; remove the state file, or leave this last state."""
        if self._server is not None:
            self._server.close()
        if self._next is None:
            return
        self._next.cancel()
        self._next = None
        changes.listeners.remove(self.nudge)
        with contextlib.suppress(OSError, RuntimeError):
            records.remove(self._path, self.control)
            if leave is not None:
                leave.id = self.id
                records.write(self._path, leave)


def _on_a_thread(command: Callable[..., Any], args: dict[str, Any]) -> asyncio.Future[Any]:
    """Run a command on a thread of its own.

    asyncio's own threads are few, the hub needs them, and Python waits for them at its end. A
    command may wait as long as a cell runs.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        value, problem = None, None
        try:
            value = command(**args)
        except BaseException as err:  # sent to the requester
            problem = err if isinstance(err, Exception) else NbdistError(f"{type(err).__name__}")
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(_settle, answer, value, problem)

    threading.Thread(target=run, name="nbdist-command", daemon=True).start()
    return answer


def _settle(answer: asyncio.Future[Any], value: Any, problem: Exception | None) -> None:
    if answer.done():  # the wait was cancelled
        return
    if problem is None:
        answer.set_result(value)
    else:
        answer.set_exception(problem)
