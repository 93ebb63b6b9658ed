"""``%dist status``: shows the state of every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.job.deaths import how_died
from nbdist.machine.amounts import UNKNOWN, in_bytes, in_percent, in_time, known
from nbdist.machine.tables import text_table
from nbdist.magics.parsing.command import say
from nbdist.notebook import current_cluster, kernel_cells
from nbdist.notebook.session import session

if TYPE_CHECKING:
    import argparse

    from nbdist.hub.link.ranks import Rank
    from nbdist.magics.parsing.command import Commands
    from nbdist.wire.inspection import Condition


def add_to(commands: Commands) -> None:
    """Add the command."""
    commands.add(status, "every rank: host, process, device, state, memory")


def status(args: argparse.Namespace) -> None:
    """Show every rank: host, process, device, state, memory; and what happens after a fault."""
    del args
    runtime = kernel_cells.running()
    if runtime is not None:
        say(f"XLA runs in this kernel on {runtime.devices}, as rank 0 of 1.")
        if not session.has_cluster():
            return
    cluster = current_cluster.cluster()
    table = _rank_table(cluster.ranks, cluster.vitals())
    say("\n".join(filter(None, (repr(cluster), table, cluster.recovery()))))


def _rank_table(ranks: list[Rank], conditions: dict[int, Condition]) -> str:
    """Return a row for each rank."""
    titles = ("rank", "host", "pid", "device", "CPU", "memory", "GPU", "GPU memory", "state")
    rows = []
    for rank in ranks:
        told = conditions.get(rank.rank)
        place = (str(rank.rank), rank.host, str(rank.pid))
        rows.append((*place, *_taken(told), _state(rank, told)))
    return text_table(titles, rows)


def _taken(told: Condition | None) -> tuple[str, str, str, str, str]:
    if told is None:
        return (UNKNOWN,) * 5
    memory, takes = told.memory, told.doing.vitals
    return (
        told.doing.device, known(takes.cpu, in_percent),
        in_bytes(memory.unique or memory.rss), known(takes.gpu, in_percent),
        known(takes.gpu_memory, in_bytes),
    )  # fmt: skip


def _state(rank: Rank, told: Condition | None) -> str:
    if rank.death is not None:
        return f"dead: {how_died(rank.death)}"
    if rank.spoilt:
        return "has lost its GPU"
    if rank.state == "busy" and told is None:
        return "busy, does not answer (it may hold the GIL)"
    if told is None or not told.doing.job:
        return rank.state
    doing = told.doing
    line = f"running line {doing.line} of the cell" if doing.line else "running"
    if doing.waiting is not None:
        return f"{line}, in {doing.waiting.op} for {in_time(int(doing.waiting.since))}"
    return line
