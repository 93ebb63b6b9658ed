"""`Job`: one run of a cell, and the handle on it."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.errors import NbdistError, UsageError
from nbdist.job import changes
from nbdist.job.events import Event, Notice
from nbdist.job.named_ranks import name_ranks, show_ranks
from nbdist.job.states import INTERRUPT, REPORTS
from nbdist.machine.amounts import in_seconds, in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nbdist.job.deaths import Death
    from nbdist.job.states import JobState, ReportKind, Stop
    from nbdist.metrics.job_metrics import Metrics
    from nbdist.metrics.scaling_table import Scaling
    from nbdist.wire.messages import Fault, Pulse
    from nbdist.wire.parcel_format import Offer


LOOK_SECONDS = 0.25
"""The longest single wait: a signal just before a wait does not end it."""
INTERRUPTED = f"The cell was {INTERRUPT.text}."
"""The beginning of messages about an interrupt."""


@dataclass(repr=False, eq=False)
class Job:
    """One run of a cell, and the handle to wait for it or cancel it.

    The hub's thread writes; any thread may read, wait and cancel.
    """

    id: str
    """A number in this process, from 1; for a detached job the end of its folder's name."""
    code: str
    ranks: tuple[int, ...]
    folder: Path
    """The folder of the cluster's logs, one file a rank; a job's output is a part of each file."""
    number: int
    """The cell's execution count in the notebook."""
    lines: int = 1
    """How many lines of the notebook's cell are above `code`."""
    state: JobState = "queued"
    created: float = field(default_factory=time.time)
    began: float | None = None
    """When it was sent to its ranks; None before."""
    seconds: float | None = None
    """How long it ran; None before its end, or if it has not begun."""
    waits_for: list[str] = field(default_factory=list)
    """The jobs that used its ranks when it arrived."""
    restarts: list[str] = field(default_factory=list)
    """The reason of each restart by its launcher."""
    errors: dict[int, Fault | Death] = field(default_factory=dict)
    """The error of each failed rank."""
    hosts: dict[int, str] = field(default_factory=dict)
    """The known hosts of ranks; empty if all are on this machine."""
    parts: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """The beginning and end of each rank's output in its log; the end is None while it grows."""
    unlogged: set[int] = field(default_factory=set)
    """Ranks that have ended without logging metrics."""
    pulses: dict[int, Pulse] = field(default_factory=dict)
    """The last report of each rank."""
    gone: set[int] = field(default_factory=set)
    """The ranks without which the job goes on."""
    notes: list[str] = field(default_factory=list)
    """Further messages for the user: replaced ranks, models that differ."""
    told_of: dict[str, str] = field(default_factory=dict)
    """The present notices by key: hangs, restarts, names that were brought."""
    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    error: NbdistError | None = None
    """The error that `wait` raises."""
    returned: dict[int, Offer] = field(default_factory=dict)
    """For each rank, the packed values that the notebook has not taken yet; they hold memory."""
    scaling: Scaling | None = None
    """The table of a series of runs (``--scale``), of which this was the last."""
    viewed: bool = False
    """Whether a viewer takes `events`; without a viewer the output does not wait."""
    background: bool = False
    """Whether its cell has ended, so that an interrupt of the kernel is not for this job."""
    task: object = None
    """The hub's task, referenced so that it is not garbage-collected."""
    _metrics: Metrics | None = None
    _resources: Metrics | None = None
    _cancelled: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)
    on_cancel: Callable[[Stop], None] = lambda _: None
    on_stacks: Callable[[], dict[int, str]] | None = None
    """Asks its ranks for their stacks; None if this process cannot."""
    on_waited: Callable[[], None] | None = None
    """Called by a waiting thread after the end: binds returned values in the notebook."""
    on_pull: Callable[[Sequence[str]], dict[str, Any]] | None = None
    """Returns what a detached job has returned; None for other jobs."""

    @property
    def ok(self) -> bool:
        """Whether every rank finished its cell."""
        return self.state == "done"

    @property
    def done(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._ended.is_set()

    @property
    def present(self) -> tuple[int, ...]:
        """The ranks without those that the job goes on without; it may have taken in others."""
        return tuple(sorted({*self.ranks, *list(self.pulses)} - self.gone))

    def log(self, rank: int) -> Path:
        """Return the path of a rank's log, which contains the cluster's other jobs, too."""
        return self.folder / f"rank{rank}.log"

    def output(self, rank: int = 0) -> str:
        """Return everything that a rank has printed so far.

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
        """Raise `NbdistError` if a rank did not run this job, or its log was removed."""
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
        """The values that its ranks have logged with `nbdist.log`, also while it runs."""
        if self._metrics is None or self._metrics.folder != self.folder:
            from nbdist.metrics.job_metrics import (
                Metrics,  # imports NumPy, which most jobs do not need
            )

            self._metrics = Metrics(self.folder, self.id, self.ranks)
        return self._metrics

    @property
    def resources(self) -> Metrics:
        """Each rank's use of resources, from the job's beginning to its end.

        The names, as far as they can be measured:

        - ``CPU``: percent of one core, for the rank's own process without its child processes
          (workers of a loader).
        - ``memory``: bytes of the process in memory, the maximum since the last value.
        - ``GPU``: percent of the time in which its GPU was in use by any process. Needs
          nvidia-ml-py.
        - ``GPU memory``: bytes of the process on its GPU, the maximum since the last value.
        - ``network received``, ``network sent``: bytes a second of the rank's host, or of its
          container if this has its own network; equal for all ranks there. Loopback, which connects
          ranks of one host, is not counted, nor traffic that bypasses the system (RDMA).

        A step is a second of the job, the same for all ranks. For 20 minutes every second is
        recorded, for 20 minutes more every second one, and so on, at least about every minute.

        Examples
        --------
        >>> job.resources["memory"].max()  # doctest: +SKIP
        >>> seconds, cpu = job.resources["CPU"].mean()  # doctest: +SKIP
        >>> job.resources.to_csv("resources.csv")  # doctest: +SKIP
        """
        if self._resources is None or self._resources.folder != self.folder:
            from nbdist.metrics.job_metrics import resources  # as for `metrics`

            self._resources = resources(self.folder, self.id, self.ranks)
        return self._resources

    def cancel(self) -> None:
        """Stop the job like an interrupt of its cell, without waiting for its end.

        A queued job leaves the queue. A running job is interrupted, then its collectives are
        aborted, then (after a countdown) it is killed; a second call speeds this up.
        """
        self._cancelled = True
        self.on_cancel(INTERRUPT)

    def abandon(self) -> None:
        """Stop the job, without speeding up a running stop: no one waits for it any more."""
        if not self._cancelled:
            self.cancel()

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of its ranks, also of ranks whose main thread is stuck.

        Raises
        ------
        NbdistError
            If the job is not running, or was detached.
        """
        if self.done:
            msg = f"job {self.id} has ended: {self.state}"
            raise NbdistError(msg)
        if self.on_stacks is None:
            msg = f"job {self.id} is detached: another process has the connection to its ranks"
            raise NbdistError(msg)
        return self.on_stacks()

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for the job's end; an interrupt ends the wait, but not the job.

        Parameters
        ----------
        timeout
            Seconds; None for no limit.

        Returns
        -------
        Job
            The job itself, when every rank has finished and the names in ``--return`` are bound.

        Raises
        ------
        RankError, Interrupted
            If the job failed, or was stopped.
        TimeoutError
            If the job has not ended in time; it goes on.
        """
        try:
            if not self.until_end(timeout):
                assert timeout is not None  # which waits for as long as it takes
                msg = f"job {self.id} has not ended after {in_seconds(timeout)}; the job goes on"
                raise TimeoutError(msg)
        except KeyboardInterrupt:
            msg = f"only the waiting was stopped: job {self.id} goes on; job.cancel() stops it"
            raise KeyboardInterrupt(msg) from None
        if self.on_waited is not None:
            self.on_waited()
        if self.error is not None:
            raise self.error
        return self

    def pull(self, *names: str) -> dict[str, Any]:
        """Wait for the end of a detached job; return the values of its ``--return``, by name.

        They are bound nowhere: this is for programs. In a notebook `wait` binds them.

        Parameters
        ----------
        names
            Some of the names; by default all.

        Raises
        ------
        RankError, Interrupted
            If the job failed, or was stopped.
        NbdistError
            If the job is not detached, or a value could not be returned or unpickled.
        """
        if self.on_pull is None:
            msg = f"job {self.id} is not detached: `wait` binds what it returns in the notebook"
            raise NbdistError(msg)
        self.until_end()
        if self.error is not None:
            raise self.error
        return self.on_pull(names)

    def until_end(self, timeout: float | None = None) -> bool:
        """Wait for the job's end, successful or not; return whether it has ended in time."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(LOOK_SECONDS if until is None else _slice(until)):
            if until is not None and time.monotonic() >= until:
                return False
        return True

    def take_returned(self, rank: int | None = None) -> Offer | None:
        """Return and release the values packed by a rank, by default the shown one."""
        return self.returned.pop(self.ranks[0] if rank is None else rank, None)

    def tell(self, key: str, text: str, *, warns: bool = True) -> None:
        """Show a notice, which replaces an earlier one with this key. Hub's thread."""
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
        """Wait for the next event; an interrupt always ends the wait. Main thread.

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
        """End the job: release viewers and waiting threads. Hub's thread."""
        self.error = error
        if error is not None:
            self.returned.clear()  # a failed job's returned values are not used
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
        """How the user can stop the job."""
        return f"`%dist cancel {self.id}`" if self.background else "interrupt the cell"

    @property
    def reports(self) -> list[str]:
        """The present notices about problems and what was done about them."""
        return [text for key, text in self.told_of.items() if _kind(key) in REPORTS]

    def told(self) -> str:
        """Return the first line of the error that its state does not tell; '' without one."""
        lines = [] if self.error is None else str(self.error).split("\n")
        if self.state == "interrupted" and lines[:1] == [INTERRUPTED]:
            del lines[0]
        return lines[0] if lines else ""


def _kind(key: str) -> str:
    """Return the kind of a line, if it is a report."""
    return key.partition(" ")[0]


def check_idle(unfinished: list[Job]) -> None:
    """Raise `UsageError` if there are jobs that a change of the cluster would end."""
    for job in unfinished:
        msg = (
            f"job {job.id} ({job.state}) uses this cluster, and the cluster must be restarted for "
            f"this: wait for the job's end, or `%dist cancel {job.id}` first"
        )
        raise UsageError(msg)


def _slice(until: float) -> float:
    return max(0.0, min(LOOK_SECONDS, until - time.monotonic()))


_ids = itertools.count(1)


def next_job_id() -> str:
    """Return a number that no other job of this process has."""
    return str(next(_ids))
