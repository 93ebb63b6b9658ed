"""A process of ours that can be seen and steered from outside: its file of state and its socket.

On the loop of whoever has the hub: a kernel's hub thread, or a keeper. Commands come as a line of
JSON on a Unix socket that only this user may open, and run on a thread of their own: they wait for
the hub, which must go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.errors import NbdistError
from nbdist.hub import record as records

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.hub.record import Record

LOOK_SECONDS = 0.15
BEAT_SECONDS = 5.0
"""The file is touched that often when nothing changes: those on other hosts see no process."""
LONGEST_PATH = 100
"""Bytes the name of a socket may have."""

Commands = dict[str, "Callable[..., Any]"]


class Request(msgspec.Struct):
    """What the sidebar asks for."""

    command: str
    args: dict[str, Any] = {}


class Beacon:
    """Shows a process from `start` to `stop`.

    Parameters
    ----------
    tell
        Returns how things stand, None if there is nothing to show; called on the loop.
    commands
        By name, what may be asked for; called on threads. What they return must go into JSON.
    """

    def __init__(self, tell: Callable[[], Record | None], commands: Commands) -> None:
        self._tell, self._commands = tell, commands
        self.id = secrets.token_hex(6)
        self._path = records.folder() / f"{self.id}.json"
        self._shown = b""
        self._beat_at = 0.0
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.control = ""

    async def start(self) -> None:
        """Begin to be seen; a folder that cannot be made is nobody's business but the sidebar's."""
        try:
            records.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            records.sweep()
            self.control = self._socket_path()
            self._server = await asyncio.start_unix_server(self._serve, self.control)
            os.chmod(self.control, 0o600)  # noqa: PTH101  # nobody waits
        except OSError:
            return
        self._task = asyncio.get_running_loop().create_task(self._show())

    def _socket_path(self) -> str:
        beside = str(self._path.with_suffix(".sock"))
        if len(os.fsencode(beside)) < LONGEST_PATH:
            return beside
        return str(Path(tempfile.mkdtemp(prefix="nbdist-")) / "control.sock")

    async def _show(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # a full disk; there is another time
                self._look()
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        record = self._tell()
        if record is not None:
            record.id, record.control = self.id, self.control
        told = b"" if record is None else msgspec.json.encode(record)
        if told != self._shown:
            if record is None:
                self._path.unlink(missing_ok=True)
            else:
                records.write(self._path, record)
            self._shown, self._beat_at = told, time.monotonic()
        elif told and time.monotonic() - self._beat_at > BEAT_SECONDS:
            os.utime(self._path)
            self._beat_at = time.monotonic()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = msgspec.json.decode(await reader.readline(), type=Request)
            command = self._commands[request.command]
            writer.write(b"{}\n")  # we are there, and at it
            await writer.drain()
            answer = {"value": await asyncio.to_thread(command, **request.args)}
        except NbdistError as err:
            answer = {"error": str(err)}
        except Exception as err:  # whoever asked must get an answer
            answer = {"error": f"{type(err).__name__}: {err}"}
        with contextlib.suppress(OSError):
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def stop(self, *, leave: Record | None = None) -> None:
        """Be steered no more, and seen no more unless something is to be left to see."""
        if self._task is not None:
            self._task.cancel()
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(OSError):
            records.remove(self._path, self.control)
            if leave is not None:
                leave.id = self.id
                records.write(self._path, leave)
