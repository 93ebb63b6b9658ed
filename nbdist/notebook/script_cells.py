"""Runs cells as scripts, started by a launcher. Any thread."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Protocol

from nbdist.hub.link.hub_loop import hub_loop, uninterrupted
from nbdist.hub.link.log_folders import Logs
from nbdist.hub.running.launch_plan import SCRIPT
from nbdist.hub.running.script_run import ScriptRun
from nbdist.job.job import Job, next_job_id
from nbdist.job.output import Output
from nbdist.notebook.session import session
from nbdist.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.hub.running.launch_plan import Plan
    from nbdist.job.states import Stop
    from nbdist.launchers.host.engines import Host


class Writable(Protocol):
    """A script that has not been written yet; see `nbdist.cell.script.make_script.Script`."""

    def write(self, path: Path) -> None:
        """Write the script and its data."""


def submit(
    script: Writable,
    plan: Plan,
    code: str,
    *,
    number: int,
    lines: int = 0,
    viewed: bool = False,
    background: bool = False,
) -> Job:
    """Launch a script without waiting for it.

    Parameters
    ----------
    script
        The script.
    plan
        How to launch the script.
    code
        The cell's source.
    number
        The cell's execution count, for tracebacks.
    lines
        Lines of the notebook's cell before `code`.
    viewed
        Whether the caller will read all of `Job.events`.

    Returns
    -------
    Job
        Its folder holds the script, its data and the logs.

    Raises
    ------
    UsageError
        If the script cannot be written; nothing was started.
    """
    settings = Settings.read()
    logs = make_folder(script, settings)
    job = Job(
        id=next_job_id(), code=code, ranks=tuple(range(plan.np)), number=number, lines=lines,
        viewed=viewed, background=background, folder=logs.folder,
    )  # fmt: skip
    host = session.hubs.host()
    try:
        with uninterrupted():
            hub_loop().wait(_start(host, job, plan, logs, settings.hang_seconds))
            session.script_jobs.append(job)
    except KeyboardInterrupt:  # who called does not get the job, and could not stop it
        job.cancel()
        raise
    session.published.show_job(job, plan.launcher)
    return job


def make_folder(script: Writable, settings: Settings) -> Logs:
    """Make the folder of a job, with its script in it.

    Raises
    ------
    UsageError
        If that is not possible; nothing is left.
    """
    logs = Logs(settings)
    try:
        script.write(logs.folder / SCRIPT)
    except BaseException:  # an interrupt, too, must leave nothing behind
        logs.close()
        shutil.rmtree(logs.folder, ignore_errors=True)
        raise
    return logs


async def _start(host: Host, job: Job, plan: Plan, logs: Logs, hang_seconds: float) -> None:
    run = ScriptRun(host, job, plan, Output(job, plan.output), hang_seconds)
    loop = hub_loop().loop

    def press(why: Stop) -> None:
        loop.call_soon_threadsafe(run.press, why)

    job.on_cancel = press
    job.on_stacks = lambda: hub_loop().wait(run.stacks())
    job.task = loop.create_task(run.run())
    job.task.add_done_callback(lambda _: logs.close())
