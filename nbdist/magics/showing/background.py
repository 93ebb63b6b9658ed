"""Shows a background job in the area of its cell while other cells run, from a thread.

The thread (one for each such job) takes the job's events and sends them on; it changes no name of
the notebook. The main thread binds the names of ``--return`` between two cells (`BindsAtEnd`).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from IPython.display import display

from nbdist.job.job import Job
from nbdist.job.named_ranks import name_ranks
from nbdist.machine.amounts import clock, in_time
from nbdist.magics.showing.area import area_of
from nbdist.magics.showing.front_end import in_notebook, metrics_how
from nbdist.magics.showing.job_output import pass_on
from nbdist.notebook.returned_names import BindsAtEnd
from nbdist.notebook.session import session
from nbdist.widgets.live_metrics import LiveMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.formatters import IPythonDisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell

SHOWN_SECONDS = 10.0
"""How long `wait` waits, after a job's end, until all its output is shown."""

log = logging.getLogger("nbdist")


class Follower:
    """Shows one job in the cell that started it, and binds the names that it returns.

    Parameters
    ----------
    shell
        The notebook's shell.
    job
        The job to follow; nothing else takes its events.
    bind
        Binds the returned values and reports them; raises `NbdistError`. Main thread.
    """

    def __init__(
        self, shell: InteractiveShell, job: Job, bind: Callable[[Callable[..., Any]], None]
    ) -> None:
        self._job = job
        self._area = area_of(shell, f"nbdist-job-{job.id}")
        self._area.headline(_described(job))
        self._live = LiveMetrics(job, self._area, metrics_how(shell))
        session.followers[job.id] = self
        self._returning = BindsAtEnd(
            shell, job,
            lambda: bind(lambda text: self._quietly(self._area.notice, "returned", text)),
            lambda err: self._quietly(self._area.error, err),
        )  # fmt: skip
        job.on_waited = self._waited
        name = f"nbdist-job-{job.id}"
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Show everything until the job's end. Follower's own thread."""
        while (event := self._job.next_event(self._live.refresh)) is not None:
            self._quietly(pass_on, event, self._area)
        self._live.end()
        self._quietly(self._area.headline, _described(self._job))
        if self._job.error is not None:
            self._quietly(self._area.error, self._job.error)

    def _quietly(self, show: Callable[..., None], *what: Any) -> None:
        try:
            show(*what)
        except Exception as err:  # the job ends only if its events are taken
            log.debug("job %s could not be shown: %s", self._job.id, err)

    def _waited(self) -> None:
        """Complete the job for a caller that has waited. Any thread; the main thread binds."""
        self._thread.join(SHOWN_SECONDS)
        if threading.current_thread() is not threading.main_thread():
            return
        # Update from the waiting cell, too: nbclient ignores messages of cells that have ended.
        self._area.headline_from_here(_described(self._job))
        self._returning.waited()

    def show_headline(self) -> None:
        """Show the job's state in the running cell, unless this is the job's own cell."""
        if not self._area.is_here():
            self._area.headline_from_here(_described(self._job), update=False)


def _described(job: Job) -> str:
    """Describe a background job's state, in words that stay true until its end."""
    who = f"Job {job.id} on {name_ranks(job.ranks)}"
    if not job.done:
        return f"{who}: in the background since {clock(job.created)}."
    if job.seconds is None:
        return f"{who}: {job.state} before it began."
    return f"{who}: {job.state} after {in_time(job.seconds)}."


def add_display(shell: InteractiveShell) -> None:
    """Have a notebook show a job as a line that is kept current, in every cell that shows it."""
    if in_notebook(shell):
        _formatter(shell).for_type(Job, _display)


def remove_display(shell: InteractiveShell) -> None:
    """Show jobs by their plain text again."""
    if in_notebook(shell):
        _formatter(shell).pop(Job, None)


def _formatter(shell: InteractiveShell) -> IPythonDisplayFormatter:
    assert shell.display_formatter is not None
    formatter: IPythonDisplayFormatter = shell.display_formatter.ipython_display_formatter
    return formatter


def _display(job: Job) -> None:
    follower = session.followers.get(job.id)
    if follower is None:
        display({"text/plain": repr(job)}, raw=True)
    else:
        follower.show_headline()
