"""`nbdist.scale`: runs the same function on more and more ranks. Main thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nbdist.backends import xla
from nbdist.errors import UsageError
from nbdist.job.throughput import scaling
from nbdist.launchers.rank_counts import check_size, core_count
from nbdist.machine import gpus
from nbdist.machine.amounts import counted
from nbdist.metrics.scaling_table import Scaling
from nbdist.notebook.launching import Call
from nbdist.notebook.session import Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbdist.job.job import Job


def scale(
    function: Callable[..., Any],
    *args: Any,
    np: Sequence[int],
    backend: str = "ddp",
    launcher: str | None = None,
    timeout: float | None = None,
) -> Scaling:
    """Call a function with several numbers of ranks in turn, and compare its throughput.

    Each number of ranks is a job of its own, as with `nbdist.launch`. The figures are those of the
    `nbdist.progress` loop that takes most time, without the first half of its steps.

    Parameters
    ----------
    function, args, backend, launcher, timeout
        As in `nbdist.launch`; the timeout is for each job.
    np
        Numbers of ranks, such as ``(1, 2, 4)``.

    Returns
    -------
    Scaling
        A table: a row for each size, in this order.

    Raises
    ------
    Exception
        As `nbdist.launch`; what was measured until then is the `scaling` of the last job that
        ended well.
    """
    sizes = list(np)
    if not sizes or len(set(sizes)) < len(sizes):
        raise UsageError(f"np={np!r} must be different numbers of ranks, such as (1, 2, 4)")
    for size in sizes:
        check_size(size)
        if backend == "xla":
            xla.check_processes(size)
    done: list[Job] = []
    try:
        for size in sizes:
            job, _ = Call(
                function, *args, np=size, backend=backend, launcher=launcher, timeout=timeout
            ).run(returns=False)
            done.append(job)
    finally:
        found = scaling(done, cautions(sizes, Wish()))
        if done:
            done[-1].scaling = found
    return found


def cautions(sizes: list[int], wish: Wish) -> list[str]:
    """Return notes on why figures for these numbers of ranks may mislead on this machine."""
    environ = {**os.environ, **(wish.env or {})}
    cores, most = core_count(), max(sizes)
    there = len(wish.gpus) if wish.gpus else gpus.count(environ)
    if there:
        if most <= there:
            return []
        told = f"{counted(most, 'rank')} on {counted(there, 'GPU')}"
        return [f"{told}: ranks that share a GPU slow each other down."]
    notes = []
    if most > cores:
        notes.append(
            f"{counted(most, 'rank')} on {counted(cores, 'core')} take turns: their figures say "
            "nothing about a machine with a core or GPU for each rank."
        )
    if cores > 1 and "OMP_NUM_THREADS" not in environ:
        notes.append(
            "On CPUs each rank may use more cores in a run with fewer ranks; with "
            "`--env OMP_NUM_THREADS=1` each rank uses one core in all runs."
        )
    return notes
