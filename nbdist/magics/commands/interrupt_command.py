"""``%dist interrupt``: stops all jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.notebook import current_cluster
from nbdist.notebook.session import session

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    commands.add(interrupt, "interrupt all jobs, also those in the background")


def interrupt(args: argparse.Namespace) -> None:
    """Interrupt the jobs that run or wait, also in the background."""
    del args
    running = [job for job in session.jobs() if not job.done]
    if not running:
        current_cluster.cluster()
    for job in running:
        job.cancel()
