"""Reads the metrics of jobs that pages follow from the jobs' own files.

The kernel is not asked: it may be busy or dead. One reader for each job serves all pages. The
server's loop owns readers and pages. Files are read, and frames are made, on other threads of the
loop, one at a time for each reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from nbdist.errors import UsageError
from nbdist.metrics.job_metrics import Metrics, resources
from nbdist.metrics.points_file import points_file
from nbdist.metrics.series import lines
from nbdist.view.page_state import Frames
from nbdist.view.recorded_view import Known, seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbdist.server.processes import Processes
    from nbdist.view.job_view import Seen

log = logging.getLogger(__name__)
NAME = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z._-]{0,99}")
"""The form of a job's folder name and id: neither can be a path."""
LOOK_SECONDS = 0.25
SHARE = 0.02
"""Reading takes at most this part of a core, because ranks need it; pauses get longer for this."""
LONGEST_PAUSE = 5.0
UNKNOWN_SECONDS = 3.0
"""A job that no file of state has named for so long is unknown; a new job appears sooner."""
MOST_KNOWN = 100
"""How many jobs are remembered, also after their process has ended."""


class Place(NamedTuple):
    """Names a job by its id and its folder's name: jobs of two kernels may have the same id."""

    folder: str
    job: str

    @classmethod
    def of(cls, folder: Any, job: Any) -> Place:
        """Return the place that a page names.

        Raises
        ------
        ValueError
            If no job can have this name.
        """
        place = cls(str(folder), str(job))
        if not all(NAME.fullmatch(name) for name in place):
            raise ValueError(f"no job has the name {job!r} in {folder!r}")
        return place


class Page(Protocol):
    """A page that follows metrics."""

    @property
    def free(self) -> bool:
        """Whether the page has received all that was sent."""

    def send_metrics(self, data: bytes) -> None:
        """Send a frame."""

    def send_unknown(self, place: Place) -> None:
        """Report to the page that a job is unknown."""


class Readers:
    """The readers of all jobs that pages follow. Server's loop."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._readers: dict[Place, Reader] = {}
        self._known: dict[Place, Known] = {}

    def watch(self, page: Page, place: Place) -> None:
        """Send a page all metrics of a job now, and new values as they are logged."""
        if place not in self._readers:
            self._readers[place] = Reader(self, place)
        self._readers[place].add(page)

    def unwatch(self, page: Page, place: Place) -> None:
        """Stop sending a job's metrics to a page."""
        reader = self._readers.get(place)
        if reader is not None and reader.remove(page):
            del self._readers[place]

    def known(self, place: Place) -> Known | None:
        """Return what is known of a job, also if its process has ended."""
        before = self._known.pop(place, None)
        now = self.processes.job(*place)
        if now is None and before is not None:
            now = before.left_behind(runs=self.processes.runs(before.process))
        if now is not None:
            self._known[place] = now  # moves to the end of the dict: most recently used
            if len(self._known) > MOST_KNOWN:
                self._known.pop(next(iter(self._known)))
        return now


class _View:
    """What one page has received."""

    def __init__(self) -> None:
        self.frames = Frames()
        self.mark: Any = None
        """The mark (`_mark`) of the last frame; another mark means that there is something new."""


class Reader:
    """Reads one job's files, as long as a page follows it.

    Parameters
    ----------
    readers
        The readers that this one belongs to.
    place
        The job.
    """

    def __init__(self, readers: Readers, place: Place) -> None:
        self._readers, self.place = readers, place
        self._views: dict[Page, _View] = {}
        self._unaware: set[Page] = set()
        """Pages that know that the job is unknown."""
        self._metrics: Metrics | None = None
        self._resources: Metrics
        self._since = time.monotonic()
        self._wake = asyncio.Event()
        self._head = _head(place)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, page: Page) -> None:
        """Serve a page from the job's beginning, also if the page asks again."""
        self._views[page] = _View()
        self._unaware.discard(page)
        self._wake.set()

    def remove(self, page: Page) -> bool:
        """Stop serving a page; return whether no page is left, which ends this reader."""
        self._views.pop(page, None)
        self._unaware.discard(page)
        if not self._views:
            self._task.cancel()
        return not self._views

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._look()
            except Exception:  # a fault in a job's files must not end the reader
                log.warning(
                    "nbdist: metrics of job %s cannot be read", self.place.job, exc_info=True
                )
                pause = LONGEST_PAUSE
            with contextlib.suppress(asyncio.TimeoutError):  # not the built-in before 3.11
                await asyncio.wait_for(self._wake.wait(), pause)

    async def _look(self) -> float:
        """Send what is new; return the seconds until the next look."""
        known = self._readers.known(self.place)
        if known is None:
            return self._say_unknown()
        views = {page: view for page, view in self._views.items() if page.free}
        frames, took = await asyncio.to_thread(self._read, known, list(views.values()))
        for (page, view), frame in zip(views.items(), frames, strict=True):
            # Meanwhile the page may have left, or asked again from the beginning.
            if frame and self._views.get(page) is view:
                page.send_metrics(self._head + frame)
        if known.ended or (known.over and not known.left):
            return LONGEST_PAUSE
        return min(max(LOOK_SECONDS, took / SHARE), LONGEST_PAUSE)

    def _say_unknown(self) -> float:
        waited = time.monotonic() - self._since
        if waited < UNKNOWN_SECONDS:
            return LOOK_SECONDS
        for page in self._views.keys() - self._unaware:
            page.send_unknown(self.place)
            self._unaware.add(page)
        return LONGEST_PAUSE

    def _read(self, known: Known, views: list[_View]) -> tuple[list[bytes], float]:
        """Return a frame for each page, empty if nothing is new, and the CPU seconds spent."""
        began = time.thread_time()
        if self._metrics is None:
            job = Path(known.job.folder), known.job.id, known.ranks
            self._metrics = Metrics(*job)
            self._resources = resources(*job)
        self._metrics.read()
        self._resources.read()
        seen = seen_of(known, self._metrics, self._resources)
        mark = _mark(seen)
        frames = [view.frames.frame(seen) if view.mark != mark else b"" for view in views]
        for view in views:
            view.mark = mark
        return frames, time.thread_time() - began


def _mark(seen: Seen) -> Any:
    """Return a value that changes when pages need a new frame, at least once a second of a run."""
    panels = (*seen.panels, *seen.resources)
    curves = tuple(curve.changes for panel in panels for _, curve in panel.curves)
    return seen._replace(seconds=int(seen.seconds), panels=[], resources=()), curves


def _head(place: Place) -> bytes:
    """Return the beginning of each frame, which names the job."""
    text = msgspec.json.encode(place._asdict())
    return len(text).to_bytes(4, "little") + text


def csv_of(known: Known) -> Iterator[str]:
    """Return every value of a job as lines of a CSV file, piece by piece. Any thread.

    Raises
    ------
    UsageError
        If the job's files were removed, or are on another machine.
    """
    folder = Path(known.job.folder)
    if not folder.is_dir():
        raise UsageError(
            f"the files of job {known.job.id} cannot be seen from the Jupyter server: they were "
            "cleared away, or lie on another machine"
        )
    return lines({rank: points_file(folder, known.job.id, rank) for rank in known.ranks})
