"""`Job`: one run of a cell, and the handle on it."""

from __future__ import annotations

import itertools
import queue
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.errors import NbdistError, UsageError
from nbdist.job import changes
from nbdist.job.states import INTERRUPT, REPORTS
from nbdist.machine.amounts import in_seconds, in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nbdist.job.states import JobState, ReportKind, Stop
    from nbdist.metrics.job_metrics import Metrics
    from nbdist.metrics.scaling_table import Scaling
    from nbdist.wire.messages import Fault, Pulse
    from nbdist.wire.parcel_format import Offer


LOOK_SECONDS = 0.25
"""Waits are no longer than this: a signal that comes just before one begins does not end it."""
INTERRUPTED = f"The cell was {INTERRUPT.text}."
"""How an interrupt begins to be told."""


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
    """A line of ours; one with the same key takes its place later, one without text removes it."""

    key: str
    text: str
    warns: bool = False
    """Whether something has gone wrong, or may: information looks otherwise."""


Event = Text | Shown | Notice | None
"""What a viewer gets, None last."""


class Death(msgspec.Struct, frozen=True, tag=True):
    """How a rank's process ended."""

    rank: int
    pid: int
    signum: int
    code: int
    out_of_memory: bool
    """Most likely the operating system has killed it for lack of memory."""
    at: float
    line: int | None
    """The cell's line it was last known at."""
    asked: bool = False
    """Whether it was killed at the end of a countdown."""


@dataclass(repr=False, eq=False)
class Job:
    """One run of a cell, and the handle on it while it runs.

    The hub's thread writes it; any thread may read, wait and cancel.
    """

    id: str
    """Counted in this process, from 1; of a detached job the end of its folder's name."""
    code: str
    ranks: tuple[int, ...]
    folder: Path
    """Where the cluster's logs lie, one file a rank; a job's output is a part of it."""
    number: int
    """The cell's execution count in the notebook."""
    lines: int = 1
    """How many of the notebook cell's lines stand before `code`."""
    state: JobState = "queued"
    created: float = field(default_factory=time.time)
    began: float | None = None
    """When its ranks were free and it was sent to them; None before."""
    seconds: float | None = None
    """How long it ran; None before its end, or if it never began."""
    waits_for: list[str] = field(default_factory=list)
    """What kept its ranks busy when it came."""
    restarts: list[str] = field(default_factory=list)
    """Why its launcher has started its ranks anew, each time."""
    errors: dict[int, Fault | Death] = field(default_factory=dict)
    """What went wrong, by rank."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By rank, its host, as far as they are known; empty where all are on this machine."""
    parts: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """Where each rank's output begins and ends in its log; None while it grows."""
    unlogged: set[int] = field(default_factory=set)
    """Ranks that are done and have logged no metrics."""
    pulses: dict[int, Pulse] = field(default_factory=dict)
    """By rank, what it was doing when last heard of."""
    notes: list[str] = field(default_factory=list)
    """What a person should know besides: ranks replaced, models that disagree."""
    told_of: dict[str, str] = field(default_factory=dict)
    """Lines of ours by key, as they stand: hangs, restarts, what was brought."""
    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    error: NbdistError | None = None
    """What `wait` raises."""
    returned: dict[int, Offer] = field(default_factory=dict)
    """By rank, what was packed for the notebook and nobody has taken yet; it holds memory."""
    scaling: Scaling | None = None
    """The table of a series of runs (``--scale``), of which this was the last."""
    viewed: bool = False
    """Whether somebody takes `events`; without a viewer nobody waits for one."""
    background: bool = False
    """Whether its cell is over, so that an interrupt of the kernel does not mean it."""
    task: object = None
    """What keeps the hub's work on it from being collected."""
    _metrics: Metrics | None = None
    _resources: Metrics | None = None
    _cancelled: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)
    on_cancel: Callable[[Stop], None] = lambda _: None
    on_stacks: Callable[[], dict[int, str]] | None = None
    """Asks its ranks where they are; None where this process cannot."""
    on_waited: Callable[[], None] = lambda: None
    """What whoever waits does first after its end: bind in the notebook what it returns."""

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
        """Raise `NbdistError` if a rank had no part in this job, or its log is gone."""
        if rank not in self.ranks:
            msg = f"job {self.id} ran on ranks {show_ranks(self.ranks)}, not on {rank}"
            raise NbdistError(msg)
        if not self.folder.exists():
            msg = (
                f"the logs of job {self.id} have been cleared away: they were too old, or all logs "
                "took too much room (NBDIST_LOG_DAYS, NBDIST_LOG_GIGABYTES)"
            )
            raise NbdistError(msg)

    @property
    def metrics(self) -> Metrics:
        """What its ranks have logged with `nbdist.log`, also while it runs."""
        if self._metrics is None or self._metrics.folder != self.folder:
            from nbdist.metrics.job_metrics import (
                Metrics,  # numpy, which most jobs need not wait for
            )

            self._metrics = Metrics(self.folder, self.id, self.ranks)
        return self._metrics

    @property
    def resources(self) -> Metrics:
        """What each rank has taken of its machine, from the beginning to the end.

        The names, as far as they can be measured:

        - ``CPU``: percent of one core, of the rank's own process. Processes that it starts (workers
          of a loader) are not counted.
        - ``memory``: bytes that the process has in memory, the most since the value before.
        - ``GPU``: percent of the time its GPU was in use, whoever used it. Needs nvidia-ml-py.
        - ``GPU memory``: bytes that the process has on its GPU, the most since the value before.
        - ``network received``, ``network sent``: bytes a second of the rank's host; of its
          container, where that has a network of its own. All ranks there have the same. Loopback,
          which joins ranks of one host, is not counted, nor what a card carries past the system
          (RDMA).

        A step is a second of the job, the same for all ranks; each is kept for 20 minutes, every
        other one for 20 minutes more, then fewer and fewer, until there is one about each minute.

        Examples
        --------
        >>> job.resources["memory"].max()  # doctest: +SKIP
        >>> seconds, cpu = job.resources["CPU"].mean()  # doctest: +SKIP
        >>> job.resources.to_csv("resources.csv")  # doctest: +SKIP
        """
        if self._resources is None or self._resources.folder != self.folder:
            from nbdist.metrics.job_metrics import resources  # as above

            self._resources = resources(self.folder, self.id, self.ranks)
        return self._resources

    def cancel(self) -> None:
        """Stop it as an interrupt of its cell would, without waiting for its end.

        A job that waits for its turn leaves the queue. One that runs is interrupted, then freed
        from collectives, then (after a countdown) killed; cancelling again hurries that.
        """
        self._cancelled = True
        self.on_cancel(INTERRUPT)

    def abandon(self) -> None:
        """Stop it without hurrying a stop that is under way: nobody waits for it any more."""
        if not self._cancelled:
            self.cancel()

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of its ranks, also of one whose main thread is stuck.

        Raises
        ------
        NbdistError
            If it does not run, or was detached.
        """
        if self.done:
            msg = f"job {self.id} has ended: {self.state}"
            raise NbdistError(msg)
        if self.on_stacks is None:
            msg = f"job {self.id} is detached: another process has the connection to its ranks"
            raise NbdistError(msg)
        return self.on_stacks()

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for its end; an interrupt ends the waiting and not the job.

        Parameters
        ----------
        timeout
            Seconds; None waits for as long as it takes.

        Returns
        -------
        Job
            Itself, when every rank has finished; what ``--return`` names is bound then.

        Raises
        ------
        RankError, Interrupted
            If it failed, or was stopped.
        TimeoutError
            If it has not ended in time; the job goes on.
        """
        try:
            if not self.until_end(timeout):
                assert timeout is not None  # which waits for as long as it takes
                msg = f"job {self.id} has not ended after {in_seconds(timeout)}; it goes on"
                raise TimeoutError(msg)
        except KeyboardInterrupt:
            msg = f"only the waiting was stopped: job {self.id} goes on, its cancel() stops it"
            raise KeyboardInterrupt(msg) from None
        self.on_waited()
        if self.error is not None:
            raise self.error
        return self

    def until_end(self, timeout: float | None = None) -> bool:
        """Wait for its end, well or not; return whether it came within these seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(LOOK_SECONDS if until is None else _slice(until)):
            if until is not None and time.monotonic() >= until:
                return False
        return True

    def take_returned(self, rank: int | None = None) -> Offer | None:
        """Return what a rank (by default the shown one) has packed, and hold it no more."""
        return self.returned.pop(self.ranks[0] if rank is None else rank, None)

    def tell(self, key: str, text: str, *, warns: bool = True) -> None:
        """Show a line of ours, in the place of an earlier one with this key. Hub's thread."""
        self.told_of[key] = text
        changes.happened()
        self.events.put(Notice(key, text, warns))

    def report(
        self, kind: ReportKind, text: str, *, which: object = "", warns: bool = True
    ) -> None:
        """Show a line that also those see who look at all jobs. Hub's thread.

        Parameters
        ----------
        kind, which
            A line of one kind takes the place of the one before; with `which`, only of the one
            with the same `which`.
        text, warns
            As `tell` has them.
        """
        self.tell(f"{kind} {which}".rstrip(), text, warns=warns)

    def next_event(self, meanwhile: Callable[[], None] = lambda: None) -> Event:
        """Wait for the next event; an interrupt is heard for sure. Main thread.

        Parameters
        ----------
        meanwhile
            Called a few times a second, and before each event that is returned.
        """
        while True:
            try:
                event = self.events.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                meanwhile()
            else:
                meanwhile()
                return event

    def end(self, error: NbdistError | None) -> None:
        """Let viewers and waiters go. Hub's thread."""
        self.error = error
        if error is not None:
            self.returned.clear()  # nobody takes what a job returns that has failed
        self.on_cancel = lambda _: None
        self._ended.set()
        self.events.put(None)
        changes.happened()

    def __repr__(self) -> str:
        return f"<job {self.id}: {self.state}{self._so_far()} on {name_ranks(self.ranks)}>"

    def _so_far(self) -> str:
        if self.done:
            return f" after {in_time(self.seconds or 0)}"
        if self.began is None:
            return ""
        return f" for {in_time(time.time() - self.began)}"

    @property
    def stop_by(self) -> str:
        """What a person does to stop it."""
        return f"`%dist cancel {self.id}`" if self.background else "interrupt the cell"

    @property
    def reports(self) -> list[str]:
        """What went wrong on its way and what was done about it, as that stands now."""
        return [text for key, text in self.told_of.items() if _kind(key) in REPORTS]

    def told(self) -> str:
        """Return the first line of how it failed that its state does not tell, '' if none does."""
        lines = [] if self.error is None else str(self.error).split("\n")
        if self.state == "interrupted" and lines[:1] == [INTERRUPTED]:
            del lines[0]
        return lines[0] if lines else ""


def _kind(key: str) -> str:
    """Return the kind of a line, if it is a report."""
    return key.partition(" ")[0]


def check_idle(unfinished: list[Job]) -> None:
    """Raise `UsageError` if there are jobs that a change of their cluster would end."""
    for job in unfinished:
        msg = (
            f"job {job.id} ({job.state}) is on this cluster, which would have to be restarted: "
            f"wait for its end, or `%dist cancel {job.id}` first"
        )
        raise UsageError(msg)


def _slice(until: float) -> float:
    return max(0.0, min(LOOK_SECONDS, until - time.monotonic()))


_ids = itertools.count(1)


def next_job_id() -> str:
    """Return a number no other job of this process has."""
    return str(next(_ids))


def how_died(death: Death) -> str:
    """Say how a process ended."""
    if death.asked:
        return "could not be interrupted and was killed"
    if death.out_of_memory:
        return "was killed by SIGKILL, most likely by the operating system for lack of memory"
    if death.signum:
        return f"was killed by {name_signal(death.signum)}"
    return f"exited with code {death.code}"


def name_signal(signum: int) -> str:
    """Return a signal's name, its number where Python has no name for it (real-time ones)."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def name_ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """Write ranks with the word before them: ``rank 0``, ``ranks 0,2-4``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {show_ranks(ranks)}"


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
