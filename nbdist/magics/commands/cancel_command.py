"""``%dist cancel``: stops the jobs that are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.magics.parsing.arguments import Words
from nbdist.magics.parsing.command import say, set_offer
from nbdist.magics.parsing.job_ids import find_job, offer_jobs
from nbdist.notebook.session import session

if TYPE_CHECKING:
    import argparse

    from nbdist.job.job import Job
    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(cancel, "interrupt jobs, also jobs that wait: %%dist cancel 3")
    jobs = parser.add_argument(
        "jobs", action=Words, metavar="JOB", help="a job's number (see %%dist jobs)"
    )
    set_offer(jobs, offer_jobs)


def cancel(args: argparse.Namespace) -> None:
    """Interrupt these jobs, or take them out of the queue."""
    for job in [find_job(number) for number in args.jobs]:
        if job.done:
            say(f"Job {job.id} has ended before: {job.state}.")
        else:
            job.cancel()
            say(f"Job {job.id} is being stopped; {_says_how(job)} how it ends.")


def _says_how(job: Job) -> str:
    if job in session.jobs():
        return "its cell says"
    return f"`%dist attach {job.id}` shows"
