"""Shows a job's metrics below its cell: live while the job runs, complete at its end.

Everything runs on the thread that shows the job.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.view import job_view
from nbdist.view.page_state import VERSION, packed
from nbdist.widgets import metrics_picture

if TYPE_CHECKING:
    from nbdist.job.job import Job

log = logging.getLogger("nbdist")
LOOK_SECONDS = 0.25
"""The least time between two readings of the metrics, and redraws of a widget."""
PICTURE_SECONDS = 1.0
"""The least time between two pictures, where there are no widgets."""
SHARE, LONGEST_PAUSE = 0.01, 10.0
"""Drawing takes at most this share of a core, which the ranks need, so pauses may be longer, up to
a maximum in seconds."""
LATER = "This front end cannot draw metrics live: they are drawn here when the cell is over."
MIME = "application/vnd.nbdist.metrics+json"
"""The type that our JupyterLab extension draws (`labextension/src/metrics/output.ts`)."""


class Place(Protocol):
    """A place for displays that can be replaced; see `nbdist.magics.showing.job_output`."""

    def place(self, key: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show this, or replace what was shown with the same key."""


class LiveMetrics:
    """Shows one job's metrics, from the first logged value on.

    Parameters
    ----------
    job
        The job.
    area
        The place for the display.
    how
        ``page`` (our extension follows the job through the Jupyter server), ``widget``,
        ``picture`` (redrawn now and then), or ``end`` (only when the job has ended).
    """

    def __init__(self, job: Job, area: Place, how: str) -> None:
        self._job, self._area, self._how = job, area, how
        self._next = time.monotonic() + LOOK_SECONDS
        self._chart: Any = None
        self._begun = self._named = False

    def refresh(self) -> None:
        """Show the job's present state, unless this was done just before."""
        now = time.monotonic()
        if now < self._next or self._job.began is None:
            return
        begun, busy = self._begun, time.thread_time()
        try:
            if self._begun or job_view.has_something(self._job):
                self._begin()
                self._draw()
        except Exception:  # an error in drawing must not stop the cell
            log.warning("the metrics of job %s cannot be shown", self._job.id, exc_info=True)
            self._how = "end"
        pause = PICTURE_SECONDS if self._begun and self._how == "picture" else LOOK_SECONDS
        took = time.thread_time() - busy if begun else 0.0  # the first time includes imports
        self._next = time.monotonic() + max(pause, min(took / SHARE, LONGEST_PAUSE))

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            # Load matplotlib now, so that the cell's end does not wait for it.
            threading.Thread(
                target=metrics_picture.prepare, name="nbdist-picture", daemon=True
            ).start()

    def _draw(self) -> None:
        if self._how == "page":
            self._name_job()
        elif self._how == "widget":
            self._job.metrics.read()
            self._draw_chart()
        elif self._how == "picture":
            self._job.metrics.read()
            self._area.place("metrics", metrics_picture.bundle(job_view.look(self._job)), {})

    def _name_job(self) -> None:
        """Let the page follow the job; nothing more is sent until the end."""
        if not self._named:
            self._named = True
            words = {"text/plain": LATER, "text/html": LATER}
            self._area.place("metrics", words | self._kept(b""), {})

    def _kept(self, state: bytes) -> dict[str, Any]:
        """Return the data for our extension: the job's name, and a frame."""
        told = {"version": VERSION, "folder": self._job.folder.name, "job": self._job.id}
        return {MIME: told | {"state": base64.b64encode(state).decode()}}

    def _draw_chart(self) -> None:
        state = packed(job_view.look(self._job))
        if self._chart is None:
            from nbdist.widgets.chart import Chart  # imports ipywidgets, rarely needed

            self._chart = Chart(state=state)
            data, metadata = self._chart._repr_mimebundle_()
            data["text/plain"] = data["text/html"] = LATER
            self._area.place("metrics", data, metadata)
        else:
            self._chart.state = state

    def end(self) -> None:
        """Show the complete metrics in a form that needs no kernel and no server."""
        try:
            if self._begun or job_view.has_something(self._job):
                self._job.metrics.read()
                last = job_view.look(self._job)
                self._area.place(
                    "metrics", metrics_picture.bundle(last) | self._kept(packed(last)), {}
                )
        except Exception:  # an error in drawing must not change how the cell ends
            log.warning("the metrics of job %s cannot be drawn", self._job.id, exc_info=True)
        finally:
            self._leave_chart()

    def _leave_chart(self) -> None:
        if self._chart is not None:
            with contextlib.suppress(Exception):  # only reloaded pages still show it
                self._draw_chart()
            self._chart.leave()
            self._chart = None
