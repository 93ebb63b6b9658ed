"""``%dist attach``: shows a detached job in the notebook; also the notice for a new one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython

from nbdist.job.named_ranks import name_ranks
from nbdist.job.output import OUTPUTS
from nbdist.machine.amounts import counted, in_time
from nbdist.magics.parsing.command import set_offer
from nbdist.magics.parsing.job_ids import offer_detached
from nbdist.magics.showing.job_output import bundle, notice, show
from nbdist.notebook import detached_jobs
from nbdist.notebook.returned_names import FromDetached, bind_returned
from nbdist.rank.values.pickles import namespace

if TYPE_CHECKING:
    import argparse

    from nbdist.detached.job_folders import Kept
    from nbdist.job.job import Job
    from nbdist.magics.parsing.command import Commands


def note_detached(kept: Kept) -> None:
    """Show that a job was detached, and which commands show or stop it."""
    notice(
        f"Job {kept.id} on {counted(kept.np, 'rank')} keeps running without this notebook. "
        f"`%dist attach {kept.id}` shows it, also after a restart and in another notebook; "
        f"`%dist cancel {kept.id}` stops it; `%dist jobs` lists all."
    )


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(attach, "show all output of a detached job: %%dist attach")
    parser.add_argument(
        "--output", choices=OUTPUTS, help="which ranks to show (default: as the job was started)"
    )
    job = parser.add_argument(
        "job", nargs="?", metavar="JOB",
        help="the job's id, see %%dist jobs (default: the last running job, or the last job)",
    )  # fmt: skip
    set_offer(job, offer_detached)


def attach(args: argparse.Namespace) -> None:
    """Show all a detached job has printed and go on live; an interrupt only stops the watching."""
    shell = get_ipython()
    assert shell is not None
    job = detached_jobs.handle(args.job, output=args.output, viewed=True)
    head = notice(_described(job))

    def leave() -> None:
        job.viewed = False
        job.events.put(None)

    try:
        show(shell, job, leave)
    finally:
        head.update(bundle(_described(job)), raw=True)
    bind_returned(FromDetached(job), job, namespace(), notice)


def _described(job: Job) -> str:
    """Describe the state of a detached job."""
    when = time.strftime("%b %d, %H:%M", time.localtime(job.created))
    who = f"Job {job.id} on {name_ranks(job.ranks)}, started {when}"
    if job.done and job.seconds is not None:
        return f"{who}: {job.state} after {in_time(job.seconds)}."
    if job.done:
        return f"{who}: {job.state}."
    if not job.viewed:
        how = f"`%dist attach {job.id}` shows it again, {job.stop_by} stops it."
        return f"{who}: it keeps running. {how}"
    return f"{who}: {job.state}."
