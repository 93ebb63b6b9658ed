"""Shows a background job in the area of its cell while other cells run, from a thread.

The thread (one for each such job) takes the job's events and sends them on; it touches no name of
the notebook. What ``--return`` names is bound by the main thread between two cells: when somebody
waits for the job, or else right before the first cell that begins after its end.
"""

from __future__ import annotations

import contextlib
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
from nbdist.notebook.session import session
from nbdist.widgets.live_metrics import LiveMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.formatters import IPythonDisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell

SHOWN_SECONDS = 10.0
"""All a job has printed is in its cell this long after its end, or somebody is very slow."""

log = logging.getLogger("nbdist")


class Follower:
    """Shows one job in the cell that started it, and has bound what it returns.

    Parameters
    ----------
    shell
        The notebook's.
    job
        What to follow; nobody else takes its events.
    bind
        Binds what the job has returned and says so; raises `NbdistError`. Main thread.
    """

    def __init__(
        self, shell: InteractiveShell, job: Job, bind: Callable[[Callable[..., Any]], None]
    ) -> None:
        self._shell, self._job, self._bind = shell, job, bind
        self._area = area_of(shell, f"nbdist-job-{job.id}")
        self._area.headline(told(job))
        self._live = LiveMetrics(job, self._area, metrics_how(shell))
        self._unbound = True
        session.followers[job.id] = self
        job.on_waited = self._waited
        shell.events.register("pre_run_cell", self._before_a_cell)
        name = f"nbdist-job-{job.id}"
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Show all until the job's end. Its own thread."""
        while (event := self._job.next_event(self._live.refresh)) is not None:
            self._quietly(pass_on, event, self._area)
        self._live.end()
        self._quietly(self._area.headline, told(self._job))
        if self._job.error is not None:
            self._quietly(self._area.error, self._job.error)

    def _quietly(self, show: Callable[..., None], *what: Any) -> None:
        try:
            show(*what)
        except Exception as err:  # a job whose events nobody takes would not end
            log.debug("job %s could not be shown: %s", self._job.id, err)

    def _before_a_cell(self, *_: object) -> None:
        """Bind what is there by now; a failure is shown in the job's own cell. Main thread."""
        if self._job.done and threading.current_thread() is threading.main_thread():
            try:
                self._finish()
            except Exception as err:  # a user's class may raise anything on its way in
                self._quietly(self._area.error, err)

    def _waited(self) -> None:
        """Complete the job for a caller that has waited. Any thread; the main thread binds."""
        self._thread.join(SHOWN_SECONDS)
        if threading.current_thread() is not threading.main_thread():
            return
        # Again in the name of the cell that waits: nbclient takes no word of one that is over.
        self._area.headline_from_here(told(self._job))
        self._finish()

    def _finish(self) -> None:
        if not self._unbound:
            return
        self._unbound = False
        with contextlib.suppress(ValueError):
            self._shell.events.unregister("pre_run_cell", self._before_a_cell)
        if self._job.returned:
            self._bind(lambda text: self._quietly(self._area.notice, "returned", text))

    def show_headline(self) -> None:
        """Show in the running cell how the job is doing, unless that is the job's own cell."""
        if not self._area.is_here():
            self._area.headline_from_here(told(self._job), update=False)


def told(job: Job) -> str:
    """Say how a job in the background is doing; this stays true until its end."""
    who = f"Job {job.id} on {name_ranks(job.ranks)}"
    if not job.done:
        return f"{who}: in the background since {clock(job.created)}."
    if job.seconds is None:
        return f"{who}: {job.state} before it began."
    return f"{who}: {job.state} after {in_time(job.seconds)}."


def add_display(shell: InteractiveShell) -> None:
    """Have a notebook show a job as a line that stays current, in every cell it is shown in."""
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
