"""Carries out the page's commands: asks processes at their sockets, else sends signals.

Signals go only to processes named in a file of state, identified by pid and start time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.detached import job_folders as keeping
from nbdist.errors import NbdistError, UsageError
from nbdist.machine import leftovers
from nbdist.machine.process_lives import runs
from nbdist.published.state_file import KEEPER, Record
from nbdist.server.processes import running

if TYPE_CHECKING:
    from nbdist.server.processes import Entry, Processes

TAKEN_SECONDS = 5.0
"""A process confirms a command at once; otherwise it is stuck or stopped."""
ANSWER_SECONDS = 30.0
TERM_SECONDS = 1.0
"""From SIGTERM to SIGKILL."""
MOST_BYTES = 1 << 26
"""The limit of an answer; the stacks of a thousand ranks fit."""


class Answer(msgspec.Struct):
    """An answer of a process; the first one only confirms that it has the command."""

    value: Any = None
    error: str = ""


class ProcessDoesNotAnswer(NbdistError):
    """A process that does not answer."""


async def ask(record: Record, command: str, **args: Any) -> Any:
    """Send a command to a process and return its answer.

    Raises
    ------
    ProcessDoesNotAnswer
        If the process does not answer.
    NbdistError
        If the process answers with an error.
    """
    _check_place(record)
    try:
        _check_owner(record.control)
        reader, writer = await asyncio.open_unix_connection(record.control, limit=MOST_BYTES)
        try:
            writer.write(msgspec.json.encode({"command": command, "args": args}) + b"\n")
            answer = await _answer(reader, TAKEN_SECONDS)
            if not answer.error:
                answer = await _answer(reader, ANSWER_SECONDS)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except (OSError, asyncio.TimeoutError, ValueError, RecursionError, msgspec.MsgspecError) as err:
        told = f": {err}" if str(err) else ""
        raise ProcessDoesNotAnswer(
            f"process {record.pid} does not answer ({type(err).__name__}{told})"
        ) from err
    if answer.error:
        raise NbdistError(answer.error)
    return answer.value


def _check_place(record: Record) -> None:
    if not record.place.seen_from_here:
        raise NbdistError(
            f"process {record.pid} runs {record.place.in_words}: this server can show the process, "
            "but not control it"
        )


def _check_owner(control: str) -> None:
    if Path(control).stat().st_uid != os.getuid():
        raise NbdistError("the socket of the process belongs to another user")


async def _answer(reader: asyncio.StreamReader, seconds: float) -> Answer:
    line = await asyncio.wait_for(reader.readline(), seconds)
    if not line.endswith(b"\n"):
        raise ConnectionResetError("it closed the connection")
    return msgspec.json.decode(line, type=Answer)


async def interrupt(entry: Entry, job: str) -> None:
    """Stop a job; if its keeper does not answer, signals end the job."""
    record = _record(entry)
    if job not in {each.id for each in record.jobs}:
        raise UsageError(f"job {job} is not known any more")
    try:
        await ask(record, "interrupt", job=job)
    except ProcessDoesNotAnswer as err:
        if record.kind != KEEPER:
            raise ProcessDoesNotAnswer(
                f"{err}; stop the cluster to end its ranks by signals"
            ) from err
        await _end(record.pid, record.created)


async def stop(entry: Entry, cluster: str) -> dict[str, int]:
    """Stop a cluster; if its kernel does not answer or is dead, signals end the ranks.

    Returns
    -------
    dict of str to int
        Empty if the kernel has done it. Else how many ranks were ``ended`` by signals, and how many
        are ``left``, which no signal ends.
    """
    record = _record(entry)
    found = next((each for each in record.clusters if each.id == cluster), None)
    if found is None:
        raise UsageError(f"cluster {cluster} was stopped")
    if entry.alive:
        with contextlib.suppress(ProcessDoesNotAnswer):
            await ask(record, "stop", cluster=cluster)
            return {}
    _check_place(record)
    before = running(found)
    await _end(*found.root)  # the ranks end with the root process
    await asyncio.gather(*(_end(rank.pid, rank.created) for rank in running(found)))
    left = len(running(found))
    return {"ended": len(before) - left, "left": left}


async def _end(pid: int, created: float) -> None:
    """End a process: SIGTERM, then SIGKILL."""
    for signum, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, TERM_SECONDS)):
        if not runs(pid, created):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
        deadline = asyncio.get_running_loop().time() + seconds
        while runs(pid, created) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)


async def restart(entry: Entry, cluster: str, rank: int) -> Any:
    """Replace a rank by a new process; return the names that the new process lacks."""
    return await ask(_record(entry), "restart", cluster=cluster, rank=rank)


async def stacks(entry: Entry, **whose: str) -> Any:
    """Return the stacks of all ranks of a cluster or a job."""
    return await ask(_record(entry), "stacks", **whose)


async def clean(processes: Processes) -> list[str]:
    """Remove the files that ended processes have left, ended jobs with their logs.

    Jobs that have returned what no notebook has taken stay, for `%dist attach`.

    These include the cluster's folder if the warm process was killed, too (`stop` may do so).

    Returns
    -------
    list of str
        The ids of the processes.
    """
    removed = []
    for entry in processes.gone():
        for job in entry.record.jobs if entry.record else []:
            folder = Path(job.folder)
            if job.detached and keeping.may_go(folder):
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        for cluster in entry.record.clusters if entry.record else []:
            clusters = Path(cluster.folder).parent
            if cluster.folder and clusters.is_dir():
                await asyncio.to_thread(leftovers.clear, clusters)
        processes.forget(entry)
        removed.append(entry.path.stem)
    return removed


def _record(entry: Entry) -> Record:
    assert entry.record is not None  # `Processes.find` returns no other
    return entry.record
