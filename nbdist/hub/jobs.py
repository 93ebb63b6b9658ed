"""A job: one run of a cell, and what its viewers see of it."""

from __future__ import annotations

import queue
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.errors import NbdistError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nbdist.hub.bring import Offer
    from nbdist.wire.messages import Fault


@dataclass(frozen=True)
class Text:
    """Output of the shown rank."""

    text: str


@dataclass(frozen=True)
class Shown:
    """A rich display of the shown rank; see `nbdist.wire.messages.Display`."""

    kind: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Notice:
    """A line of ours; a later one with the same key takes its place."""

    key: str
    text: str


Event = Text | Shown | Notice | None
"""What a viewer gets, None last."""


@dataclass(frozen=True)
class Death:
    """How a rank's process ended."""

    rank: int
    pid: int
    signum: int
    code: int
    out_of_memory: bool
    at: float
    line: int | None
    """The cell's line it was last known at."""
    asked: bool = False
    """Whether it was killed at the end of a countdown."""


@dataclass
class Job:
    """One run of a cell. The hub's thread writes it; any thread may read and wait."""

    id: str
    code: str
    ranks: tuple[int, ...]
    folder: Path
    """Where the cluster's logs lie, one file a rank; a job's output is a part of it."""
    number: int
    """The cell's execution count in the notebook."""
    lines: int = 1
    """How many of the notebook cell's lines stand before `code`."""
    state: str = "queued"
    """queued, running, done, failed, interrupted or timed out."""
    created: float = field(default_factory=time.time)
    seconds: float | None = None
    errors: dict[int, Fault | Death] = field(default_factory=dict)
    """What went wrong, by rank."""
    parts: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """Where each rank's output begins and ends in its log; None while it grows."""
    notes: list[str] = field(default_factory=list)
    """What a person should know besides: ranks replaced, models that disagree."""
    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    error: NbdistError | None = None
    """What `wait` raises."""
    returned: Offer | None = None
    """What the shown rank has packed for the notebook, if it was asked for something."""
    viewed: bool = False
    """Whether somebody takes `events`; without a viewer nobody waits for one."""
    _ended: threading.Event = field(default_factory=threading.Event)
    on_interrupt: Callable[[], None] = lambda: None

    @property
    def ok(self) -> bool:
        """Whether every rank finished its cell."""
        return self.state == "done"

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._ended.is_set()

    def log(self, rank: int) -> Path:
        """Return the path of a rank's log, which holds the cluster's other jobs too."""
        return self.folder / f"rank{rank}.log"

    def output(self, rank: int = 0) -> str:
        """Return all a rank has printed so far.

        Raises
        ------
        NbdistError
            If the rank had no part in this job.
        """
        self.check_rank(rank)
        begin, end = self.parts.get(rank, (0, 0))
        try:
            with self.log(rank).open("rb") as file:
                file.seek(begin)
                data = file.read(-1 if end is None else end - begin)
        except FileNotFoundError:
            return ""
        return data.decode("utf-8", errors="backslashreplace")

    def check_rank(self, rank: int) -> None:
        """Raise `NbdistError` if a rank had no part in this job."""
        if rank not in self.ranks:
            msg = f"job {self.id} ran on ranks {show_ranks(self.ranks)}, not on {rank}"
            raise NbdistError(msg)

    def interrupt(self) -> None:
        """Stop it: interrupt, then free from collectives, then (after a countdown) kill."""
        self.on_interrupt()

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for its end.

        Parameters
        ----------
        timeout
            Seconds; None waits for as long as it takes.

        Raises
        ------
        RankError, Interrupted
            If it failed, or was stopped.
        TimeoutError
            If it has not ended in time; the job goes on.
        """
        if not self._ended.wait(timeout):
            msg = f"job {self.id} has not ended after {timeout:g} s; it goes on"
            raise TimeoutError(msg)
        if self.error is not None:
            raise self.error
        return self

    def end(self, error: NbdistError | None) -> None:
        """Let viewers and waiters go. Hub's thread."""
        self.error = error
        self._ended.set()
        self.events.put(None)


def how_died(death: Death) -> str:
    """Say how a process ended."""
    if death.asked:
        return "could not be interrupted and was killed"
    if death.out_of_memory:
        return "was killed by the operating system: out of memory (SIGKILL)"
    if death.signum:
        return f"was ended by {signal.Signals(death.signum).name}"
    return f"exited with code {death.code}"


def show_ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """Write ranks as a person would: ``0,2-4``."""
    return ",".join(_spans(sorted(ranks)))


def _spans(ranks: list[int]) -> Iterator[str]:
    start = 0
    for i, rank in enumerate(ranks):
        if i + 1 == len(ranks) or ranks[i + 1] != rank + 1:
            first = ranks[start]
            yield f"{first}" if first == rank else f"{first}-{rank}"
            start = i + 1
