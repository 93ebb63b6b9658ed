"""`nbdist.compare`: runs the same training in different ways. Main thread."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nbdist.errors import UsageError
from nbdist.job.job import Job
from nbdist.job.throughput import comparison
from nbdist.launchers.scripts.launcher import launcher
from nbdist.notebook.launching import Call
from nbdist.notebook.scaling import cautions
from nbdist.notebook.session import Wish
from nbdist.widgets.comparison_picture import Compared

if TYPE_CHECKING:
    from collections.abc import Sequence


def compare(ways: Mapping[str, Call | Job], *, metrics: Sequence[str] | None = None) -> Compared:
    """Run the same training in different ways, and compare their throughput and their metrics.

    Each call runs in a job of its own, one after the other; jobs that have run already are compared
    as they are. The figures are those of the `nbdist.progress` loop that takes most time, without
    the first half of its steps; where there are several loops, a note names this one.

    Parameters
    ----------
    ways
        By a name of your choice, an `nbdist.Call`, or a job of `nbdist.jobs()` that succeeded. The
        first is the baseline.
    metrics
        Names given to `nbdist.log` whose last value gets a column; by default the first four that
        all ways have logged.

    Returns
    -------
    Compared
        A table, which a notebook shows with a picture: samples a second of all ranks together,
        seconds for an epoch (one pass through the loop's items), where the time of a step goes in
        milliseconds, and the metrics. `to_pandas()` has all figures.

    Raises
    ------
    UsageError, LaunchError
        If a way cannot be, or what it needs is not installed; nothing was started.
    Exception
        As `nbdist.launch`, of the first way that fails. The ways before it are shown; their jobs
        are in `nbdist.jobs()` (those of launcher engines are not), and can be compared without
        running again.

    Examples
    --------
    >>> nbdist.compare({
    ...     "one process": nbdist.Call(train, np=1, backend="none"),
    ...     "DDP": nbdist.Call(train, np=2),
    ...     "Horovod": nbdist.Call(train, np=2, backend="horovod"),
    ... })  # doctest: +SKIP
    """
    sizes = _checked(ways)
    if isinstance(metrics, str):
        metrics = [metrics]
    told = None if metrics is None else [str(name) for name in metrics]
    notes = cautions(sizes, Wish()) if sizes else []
    done: dict[str, Job] = {}
    try:
        for place, (name, way) in enumerate(ways.items(), 1):
            if isinstance(way, Job):
                done[name] = way
                continue
            sys.stdout.write(f"{name} ({place} of {len(ways)}):\n")
            done[name], _ = way.run(returns=False)
    except BaseException:  # an interrupt, too, must not cost what has run
        if done:
            sys.stderr.write(f"{_table(done, told, notes)!r}\n")
        raise
    return _table(done, told, notes)


def _table(jobs: dict[str, Job], metrics: list[str] | None, notes: list[str]) -> Compared:
    found = comparison(jobs, metrics, notes)
    return Compared(found.rows, found.notes, found.metrics)


def _checked(ways: Any) -> list[int]:
    """Return the numbers of ranks of the jobs that will run on this machine."""
    if not isinstance(ways, Mapping) or not ways:
        raise UsageError(
            "compare takes a dict of names and calls or jobs: {'DDP': nbdist.Call(train)}"
        )
    sizes = []
    for name, way in ways.items():
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is given as a name, but is not a string")
        if isinstance(way, Job):
            if not way.ok:
                raise UsageError(f"{name}: job {way.id} is {way.state}, so it has no figures")
            continue
        if not isinstance(way, Call):
            raise UsageError(f"{name} is {way!r}: give an nbdist.Call, or a job of nbdist.jobs()")
        size = way.check()
        way.packed()
        if way.launcher != "engines":
            launcher(way.launcher).check("there" if find_spec("torch") else "")
        sizes += [] if way.slots else [size]
    return sizes
