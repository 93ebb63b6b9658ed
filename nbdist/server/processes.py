"""What the processes of this user show of themselves, and commands for them. The server's loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import Any

import msgspec
import psutil

from nbdist.errors import NbdistError, UsageError
from nbdist.hub.beacon import remove
from nbdist.wire import record as records
from nbdist.wire.record import Record

ANSWER_SECONDS = 20.0
"""A process has this long to do what it was asked for."""
END_SECONDS = 3.0
"""What was stopped has this long before it is ended by signals."""
MOST_BYTES = 1 << 20


def alive(record: Record) -> bool:
    """Whether the process that wrote a record still runs; one of another host counts as running."""
    if record.host != socket.gethostname():
        return True
    try:
        return abs(psutil.Process(record.pid).create_time() - record.created) < 1
    except psutil.Error:
        return False


def state() -> dict[str, Any]:
    """Return what the page shows."""
    found, unreadable = records.read_all()
    processes = []
    for record in found:
        told = msgspec.to_builtins(record)
        told.pop("control", None)
        processes.append(told | {"alive": alive(record)})
    return {"processes": processes, "unreadable": msgspec.to_builtins(unreadable)}


def find(id_: str) -> Record:
    """Return the record of a process that the page names.

    Raises
    ------
    UsageError
        If there is none any more.
    """
    for record in records.read_all()[0]:
        if record.id == id_:
            return record
    raise UsageError("this process has ended")


async def ask(record: Record, command: str, args: dict[str, Any]) -> Any:
    """Have a process do something, and return what it answers.

    Raises
    ------
    NbdistError
        What the process said, or that it does not answer.
    """
    try:
        async with _within(ANSWER_SECONDS):
            return await _ask(record, command, args)
    except (OSError, asyncio.TimeoutError, msgspec.MsgspecError) as err:
        raise NbdistError(f"it does not answer: {type(err).__name__}: {err}") from err


async def _ask(record: Record, command: str, args: dict[str, Any]) -> Any:
    if os.stat(record.control).st_uid != os.getuid():  # noqa: PTH116, ASYNC240  # a socket, no waiting
        raise NbdistError("its socket belongs to somebody else")
    reader, writer = await asyncio.open_unix_connection(record.control, limit=MOST_BYTES)
    try:
        writer.write(msgspec.json.encode({"command": command, "args": args}) + b"\n")
        answer = msgspec.json.decode(await reader.readline())
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if "error" in answer:
        raise NbdistError(answer["error"])
    return answer["value"]


@contextlib.asynccontextmanager
async def _within(seconds: float) -> Any:
    """Cancel what takes longer; asyncio's own came with Python 3.11."""
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        yield
    except asyncio.CancelledError as err:
        raise asyncio.TimeoutError from err
    finally:
        timer.cancel()
