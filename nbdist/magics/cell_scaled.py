"""``%%distributed --scale 1,2,4`` runs the same cell on more and more ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.display import display

from nbdist.errors import NbdistError
from nbdist.job.job import check_idle
from nbdist.job.throughput import scaling
from nbdist.launchers.rank_counts import check_size
from nbdist.launchers.scripts.hosts import check_slots, hosts_named
from nbdist.machine.amounts import counted
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.magics.showing.job_output import notice
from nbdist.notebook import current_cluster
from nbdist.notebook.scaling import cautions
from nbdist.notebook.session import Wish, session
from nbdist.widgets.scaling_picture import bundle

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from nbdist.job.job import Job

EXCLUDED = {
    "np": "-np", "ranks": "--ranks", "background": "--async", "detach": "--detach",
    "save": "--save", "min_np": "--min-np", "max_np": "--max-np",
    "host_discovery_script": "--host-discovery-script", "max_restarts": "--max-restarts",
}  # fmt: skip
"""Flags that do not go with a series, by attribute of the parsed line."""


def check_alone(args: argparse.Namespace) -> None:
    """Raise `UsageMistake` for flags that do not go with `--scale`."""
    if args.scale is None:
        return
    for name, flag in EXCLUDED.items():
        if getattr(args, name) not in (None, False):
            raise UsageMistake(
                f"--scale runs the cell once on each number of ranks, and waits: leave out {flag}"
            )


def run_series(
    args: argparse.Namespace,
    wish: Wish,
    run: Callable[[int], Job | None],
    *,
    on_engines: bool,
) -> None:
    """Run a cell at each size, and show a table of the successful runs.

    Parameters
    ----------
    args, wish
        The flags, and the cluster that they ask for.
    run
        Runs the cell on so many ranks and shows it; raises its error.
    on_engines
        Whether the cell runs on the cluster's ranks, not as a script.

    Raises
    ------
    UsageMistake
        If a size is not possible; nothing was started.
    RankError, Interrupted
        If a run failed, which ends the series.
    """
    sizes: list[int] = args.scale
    try:
        _check_sizes(args)
        lost = _lost_names() if on_engines else []
    except NbdistError as err:
        raise UsageMistake(str(err)) from err
    notes = [] if args.hosts or args.hostfile else cautions(sizes, current_cluster.wished(wish))
    if on_engines:
        told = f" Lost with the old ranks: {', '.join(lost)}." if lost else ""
        notice(f"The cell gets new ranks for each run.{told}", warns=bool(lost))
    for note in notes:
        notice(note, warns=True)
    done: list[Job] = []
    try:
        with current_cluster.size_kept():
            for place, size in enumerate(sizes, 1):
                notice(f"On {counted(size, 'rank')}, run {place} of {len(sizes)}:")
                job = run(size)
                assert job is not None  # only a detached job is None
                done.append(job)
    finally:
        if done:
            _show_table(done, notes)


def _show_table(done: list[Job], notes: list[str]) -> None:
    """Show the table of a series, and keep it in the last job."""
    found = scaling(done, notes)
    session.jobs()[-1].scaling = found
    data, metadata = bundle(found)
    display(data, raw=True, metadata=metadata)


def _check_sizes(args: argparse.Namespace) -> None:
    hosts = hosts_named(args.hosts, args.hostfile)
    for size in args.scale:
        if hosts:
            check_slots(hosts, size)
        else:
            check_size(size)


def _lost_names() -> list[str]:
    """Return the names on the present ranks, which are lost; raise if a rank is busy."""
    if not session.has_cluster() or current_cluster.cluster().lost:
        return []
    check_idle(current_cluster.cluster().unfinished())
    return current_cluster.cluster().names()
