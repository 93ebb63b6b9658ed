"""Collects the stack of every rank, also if its main thread is stuck. Hub's thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbdist.rank.looking.vitals import STACKS_SIGNAL
from nbdist.wire.rank_calls import TellStacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nbdist.hub.link.agent_connections import Line

STACKS_SECONDS = 3.0
"""Time limit for an agent, which reads source files at the first request."""
DUMP_SECONDS, QUIET_SECONDS, LOOK_SECONDS = 3.0, 0.2, 0.02
"""Time limit for a dump after a signal; the dump is complete when it has not grown for a while."""


async def of(
    line: Line, folder: Path, ranks: Iterable[int], dump: Callable[[int], None]
) -> dict[int, str]:
    """Return the stacks of these ranks, or a reason for a rank without an answer.

    Parameters
    ----------
    line
        Sends requests to the agents.
    folder
        Returns the folder of a rank's dump file, written on `STACKS_SIGNAL`.
    dump
        Sends this signal to a rank.
    """
    dumps = {rank: folder / f"rank{rank}.stacks" for rank in ranks}
    before = {rank: _size(path) for rank, path in dumps.items()}
    answers = await line.call_all(dumps, TellStacks(), timeout=STACKS_SECONDS)
    found: dict[int, str] = {}
    for rank, answer in answers.items():
        if isinstance(answer, str):
            found[rank] = answer
        else:
            # The agent cannot run because C code holds the GIL, but a C signal handler can.
            dump(rank)
    lacking = dumps.keys() - found.keys()
    await asyncio.gather(*(_written(dumps[rank], before[rank]) for rank in lacking))
    for rank in lacking:
        text = ""
        with contextlib.suppress(FileNotFoundError):
            text = dumps[rank].read_text(encoding="utf-8", errors="replace")[before[rank] :]
        told = (
            "the rank holds the GIL; innermost frame first" if text else "the rank does not answer"
        )
        found[rank] = f"({told})\n{text}"
    return dict(sorted(found.items()))


async def _written(dump: Path, before: int) -> None:
    """Wait until a rank has written its dump, at most `DUMP_SECONDS`."""
    clock = asyncio.get_running_loop().time
    until, size, since = clock() + DUMP_SECONDS, before, clock()
    while clock() < until and (size == before or clock() < since + QUIET_SECONDS):
        await asyncio.sleep(LOOK_SECONDS)
        now = _size(dump)
        if now != size:
            size, since = now, clock()


def _size(dump: Path) -> int:
    return dump.stat().st_size if dump.exists() else 0


def have_dumped(pid: int, launcher: int) -> None:
    """Send the signal to a rank of this launcher, if the pid still belongs to it.

    A process without a handler, which the signal would kill, does not get it.
    """
    with contextlib.suppress(psutil.Error, OSError):
        if any(one.pid == pid for one in psutil.Process(launcher).children(recursive=True)):
            status = Path("/proc", str(pid), "status")
            caught = status.read_text(encoding="ascii") if status.exists() else ""
            masks = [line.split()[1] for line in caught.splitlines() if line.startswith("SigCgt:")]
            if all(int(mask, 16) >> (STACKS_SIGNAL - 1) & 1 for mask in masks):
                os.kill(pid, STACKS_SIGNAL)
