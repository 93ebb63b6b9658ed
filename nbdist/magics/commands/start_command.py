"""``%dist start``: starts the cluster before a cell needs it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nbdist.machine.amounts import in_time
from nbdist.magics.parsing.arguments import UsageMistake, add_cluster_arguments, wish
from nbdist.magics.parsing.command import say
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(start, "start the cluster without running a cell")
    add_cluster_arguments(parser)


def start(args: argparse.Namespace) -> None:
    """Start the cluster without running a cell."""
    began, wanted = time.monotonic(), wish(args)
    if current_cluster.wished(wanted).launcher == "kernel":
        last = "" if wanted.backend or wanted.launcher else ", as the last cell had it,"
        raise UsageMistake(
            f"--backend xla{last} runs cells in this kernel and needs no start; to start "
            "ranks for the next cells, use --backend ddp, horovod or none"
        )
    cluster, notes = current_cluster.cluster_for(wanted)
    for note in notes:
        say(note)
    say(f"{cluster!r} ready after {in_time(time.monotonic() - began)}")
