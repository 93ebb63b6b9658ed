"""`nbdist.log`: logs numbers from a training loop at very low cost.

`log` only puts its values on a queue, in the calling thread. A thread of ours writes the queue into
the rank's file several times a second; the end of the cell writes the rest. No object of the loop
is kept alive: scalars on the CPU are read at once. A scalar on a GPU is copied on the GPU's stream,
and our thread reads the finished copy.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
from array import array
from collections import deque
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.machine.amounts import counted
from nbdist.metrics.points_file import Column, Frame, append, open_to_append, points_file
from nbdist.rank.metrics.scalars import fetched, read

if TYPE_CHECKING:
    from collections.abc import Mapping

PACK_SECONDS = 0.2
MOST_WAITING = 50_000
"""With more records on the queue, the logging thread writes them, so that the queue is bounded."""
FARTHEST_STEP = 2**62
"""The largest step: names without a step can count on from here within 64 bits."""
LONGEST_NAME = 500
SETTLE_SECONDS = 10.0
"""How long the end of a cell waits for scalars on a GPU; later ones are left out."""

Record = tuple[float, "int | None", dict[str, Any]]
"""The time, the step if one was given, and the numbers by name."""
Numbers = tuple["array[int]", "array[float]", "array[float]"]
"""The steps, times and values of one name."""


class Recorder:
    """Writes what one rank logs in one job.

    Parameters
    ----------
    folder, job, rank
        They name the file, which is made when something is logged.
    start
        How often the job has been restarted.
    """

    def __init__(self, folder: str, job: str, rank: int, start: int = 0) -> None:
        self._folder, self._job, self._rank, self._start = folder, job, rank, start
        self.waiting: deque[Record] = deque()
        self.later = False
        """Whether scalars on a GPU have been logged."""
        self._next: dict[str, int] = {}
        """For each name, the step of the next value that is logged without a step."""
        self._file = -1
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        """Held by the thread that writes the file."""
        self._over = threading.Event()
        self.left_out = 0
        self.names: set[str] = set()
        """The names that were checked already."""
        self._broken = False

    @property
    def name(self) -> str:
        """A name of the job that is unique over all kernels."""
        return f"{Path(self._folder).name}-{self._job}"

    def add(self, step: int | None, values: dict[str, Any]) -> None:
        """Queue values that have passed `read`. Any thread."""
        self.waiting.append((time.time(), step, values))
        if self._thread is None:
            self._begin()
        elif len(self.waiting) > MOST_WAITING:
            self.pack()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="nbdist-metrics", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PACK_SECONDS):
            self.pack()

    def pack(self, *, wait: float = 0.0) -> None:
        """Write the queue, up to the first scalar whose copy is not finished. Any thread."""
        with self._lock:
            columns: dict[str, Numbers] = {}
            for names, records in groupby(self._ready(wait), key=lambda record: tuple(record[2])):
                times, steps, values = zip(*records, strict=True)
                for name, numbers in zip(
                    names, zip(*map(dict.values, values), strict=True), strict=True
                ):
                    self._put(columns, name, times, steps, numbers)
            if columns and not self._broken:
                try:
                    self._write(columns)
                except OSError as err:  # an error here must not end the training
                    self._broken = True
                    print(f"nbdist.log: nothing more is recorded: {err}", file=sys.stderr)

    def _put(
        self, columns: dict[str, Numbers], name: str, times: tuple[float, ...],
        steps: tuple[int | None, ...], values: tuple[float, ...],
    ) -> None:  # fmt: skip
        column = columns.get(name)
        if column is None:
            column = columns[name] = array("q"), array("d"), array("d")
        if None in steps:
            counted = []
            following = self._next.get(name, 0)
            for step in steps:
                counted.append(following if step is None else step)
                following = counted[-1] + 1
            column[0].extend(counted)
        else:
            column[0].extend(steps)  # type: ignore[arg-type]  # there is no None in it
        self._next[name] = column[0][-1] + 1
        column[1].extend(times)
        column[2].extend(values)

    def _ready(self, wait: float) -> list[Record]:
        """Take finished records from the queue; with `wait`, drop scalars that do not finish."""
        waiting = self.waiting
        if not self.later:
            return [waiting.popleft() for _ in range(len(waiting))]
        until, found = time.monotonic() + wait, []
        for _ in range(len(waiting)):
            at, step, values = waiting[0]
            if _there(values, until):
                found.append((at, step, {n: fetched(v) for n, v in values.items()}))
            elif not wait:
                break
            else:
                self.left_out += 1
            waiting.popleft()
        return found

    def _write(self, columns: dict[str, Numbers]) -> None:
        if self._file < 0:
            self._file = open_to_append(points_file(self._folder, self._job, self._rank))
        packed = [
            Column(str.__str__(name), *(each.tobytes() for each in three))
            for name, three in columns.items()
        ]
        append(self._file, Frame(self._start, packed))

    def end(self) -> bool:
        """Write the rest; return whether anything was logged. The thread that ends the cell."""
        self._over.set()
        with self._lock:  # a user's thread may be starting ours now
            thread = self._thread
        if thread is None and not self.waiting:
            return False
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.pack(wait=SETTLE_SECONDS)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self.left_out:
            steps = counted(self.left_out, "step")
            print(f"nbdist.log: values of {steps} did not arrive from the GPU", file=sys.stderr)
        return True


def _there(values: dict[str, Any], until: float) -> bool:
    """Whether all values can be read, after a wait until this time for values on a GPU."""
    for value in values.values():
        while value.__class__ is not float and not value.there():
            if time.monotonic() >= until:
                return False
            time.sleep(0.001)
    return True


_recorder: Recorder | None = None


def log(
    values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any
) -> None:
    """Log numbers of this step; their curves grow below the cell while it runs.

    Any rank may log, as often as it likes. Values that several ranks log under the same name and
    step are shown as their mean, with their range. Names with a slash share a panel
    (``train/loss``, ``val/loss``). Outside a rank nothing is logged.

    Parameters
    ----------
    values
        A mapping of names to numbers, for names that are not valid Python names.
    step
        The step of these numbers; by default each name has its own count, from 0.
    **named
        Numbers by name: of Python or NumPy, or tensors with one element. A tensor on a GPU is
        copied there and read later; the call does not wait for the GPU.

    Raises
    ------
    TypeError
        If a value is not a number, `step` is not an integer, or a name is not a string.
    ValueError
        If `step` is beyond 2**62, or a name cannot be kept.

    Examples
    --------
    >>> nbdist.log(loss=loss, accuracy=correct / seen)  # doctest: +SKIP
    >>> nbdist.log({"val/loss": loss}, step=epoch)  # doctest: +SKIP
    """
    recorder = _recorder
    if recorder is None:
        _warn_in_notebook()
        return
    if values is not None:
        named = {**values, **named}
    for name, value in named.items():
        if name not in recorder.names:
            recorder.names.add(_named(name))
        if value.__class__ is not float:
            named[name] = number = read(name, value)
            if number.__class__ is not float:
                recorder.later = True
    if step is not None and not (step.__class__ is int and -FARTHEST_STEP <= step <= FARTHEST_STEP):
        step = _whole(step)
    recorder.add(step, named)


def _warn_in_notebook() -> None:
    if "nbdist.magics" in sys.modules:  # no warning in a script that runs elsewhere
        warnings.warn(
            "nbdist.log in the notebook itself logs nothing: a cell must begin with %%distributed",
            stacklevel=3,
        )


def _whole(step: Any) -> int:
    number = step if isinstance(step, int) else fetched(read("step", step))
    if isinstance(number, float) and not (number.is_integer() or math.isinf(number)):
        msg = f"nbdist.log: step is {step!r}, which is not an integer"
        raise TypeError(msg)
    if abs(number) > FARTHEST_STEP:
        msg = "nbdist.log: step is beyond the range from -2**62 to 2**62"
        raise ValueError(msg)
    return int(number)


def _named(name: Any) -> str:
    """Check that a name can be written and shown; return it."""
    if not isinstance(name, str):
        msg = f"nbdist.log: the name {name!r} is a {type(name).__name__}, and not a string"
        raise TypeError(msg)
    if len(name) > LONGEST_NAME:
        msg = (
            f"nbdist.log: the name {name[:40]!r}... has {len(name):,} characters; "
            f"at most {LONGEST_NAME} are allowed"
        )
        raise ValueError(msg)
    try:
        name.encode()
    except UnicodeEncodeError as err:
        msg = f"nbdist.log: the name {name!r} cannot be encoded: {err.reason}"
        raise ValueError(msg) from err
    return name


def job_name() -> str:
    """Return the unique name of this rank's job; '' outside a rank."""
    recorder = _recorder
    return "" if recorder is None else recorder.name


def begin(folder: str, job: str, rank: int, start: int = 0) -> None:
    """Start to write what this process logs, as a rank of this job. Main thread."""
    global _recorder
    end()
    _recorder = Recorder(folder, job, rank, start)


def end() -> bool:
    """Stop logging, and write the rest to disk. Main thread.

    Returns
    -------
    bool
        Whether anything was logged.
    """
    global _recorder
    recorder, _recorder = _recorder, None
    return recorder is not None and recorder.end()


def _in_fork() -> None:
    """Stop logging in a fork of a rank: a loader's worker is not a rank, and lacks our thread."""
    global _recorder
    _recorder = None


os.register_at_fork(after_in_child=_in_fork)
