"""``%dist stop``: ends the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.job.states import WITH_CLUSTER
from nbdist.magics.parsing.command import say
from nbdist.notebook import current_cluster
from nbdist.notebook.clusters import END_SECONDS
from nbdist.notebook.session import session

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    commands.add(stop, "stop the cluster")


def stop(args: argparse.Namespace) -> None:
    """Stop the cluster; variables on its ranks are lost."""
    del args
    running = session.running_scripts()
    if not running:
        current_cluster.cluster()
    for job in running:
        job.on_cancel(WITH_CLUSTER)
    lost = current_cluster.stop()
    for job in running:
        job.until_end(END_SECONDS)
    say("The cluster was stopped." + (f" Lost: {', '.join(lost)}." if lost else ""))
