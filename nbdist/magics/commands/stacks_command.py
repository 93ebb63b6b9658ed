"""``%dist stacks``: where every rank is."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from IPython.core.magic_arguments import argument, magic_arguments

from nbdist.errors import NbdistError
from nbdist.magics.commands.logs_command import find_job
from nbdist.notebook import current_cluster
from nbdist.notebook.session import session


@magic_arguments("dist stacks")
@argument("job", nargs="?", metavar="JOB", help="only of the job with this id")
def stacks(args: Any) -> None:
    """Show where every rank is, also one that is stuck: the cluster's, and those of scripts."""
    if args.job is not None:
        _show("", find_job(args.job).stacks())
        return
    running = session.running_scripts()
    if session.has_cluster() or not running:
        _show("", current_cluster.cluster().stacks())
    for job in running:
        with suppress(NbdistError):  # it has ended just now
            _show(f"job {job.id}, ", job.stacks())


def _show(whose: str, found: dict[int, str]) -> None:
    for rank, text in found.items():
        print(f"=== {whose}rank {rank} ===\n{text}")
