"""``%dist stacks``: shows the stack of every rank."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.magics.parsing.command import set_offer
from nbdist.magics.parsing.job_ids import find_job, offer_jobs
from nbdist.notebook import current_cluster
from nbdist.notebook.session import session

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        stacks, "show the stacks of all ranks, or of one job's ranks: %%dist stacks 3"
    )
    job = parser.add_argument("job", nargs="?", metavar="JOB", help="only of the job with this id")
    set_offer(job, offer_jobs)


def stacks(args: argparse.Namespace) -> None:
    """Show the stack of every rank of the cluster and of scripts, also of stuck ranks."""
    if args.job is not None:
        _show("", find_job(args.job).stacks())
        return
    running = session.running_scripts()
    if session.has_cluster() or not running:
        _show("", current_cluster.cluster().stacks())
    for job in running:
        with suppress(NbdistError):  # the job has just ended
            _show(f"job {job.id}, ", job.stacks())


def _show(whose: str, found: dict[int, str]) -> None:
    for rank, text in found.items():
        print(f"=== {whose}rank {rank} ===\n{text}")
