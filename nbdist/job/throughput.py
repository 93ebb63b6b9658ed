"""The throughput of a job and where the time of a step went, compared with earlier jobs.

The figures are those of the loop that takes most time, without the first half of its steps: there
are imports, the first connections, caches and what else happens once. So they tell what a long
training would get, and no run should be too short: below `FEW_STEPS` the table says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbdist.machine.amounts import counted
from nbdist.metrics.comparison_table import Comparison, Way
from nbdist.metrics.scaling_table import Row, Scaling
from nbdist.metrics.slowest_rank import Slowest, slowest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbdist.job.job import Job
    from nbdist.wire.activity import Pace

FEW_STEPS = 20
ALIKE = 0.02
"""A smaller last batch of an epoch changes the mean step by less than this share."""
MOST_NAMED = 10
WRITE = "write for batch in nbdist.progress(loader)"
MOST_METRICS = 4
"""The number of metrics' columns in a comparison by default."""


def scaling(jobs: list[Job], notes: list[str]) -> Scaling:
    """Return the scaling table of jobs with the same cell.

    Parameters
    ----------
    jobs
        The successful jobs, one for each number of ranks.
    notes
        What is to be said besides.
    """
    found = [measured(job) for job in jobs]
    rows = [row for row, _ in found]
    told = [note for _, notes_of in found for note in notes_of]
    with_rates = [row for row in rows if row.samples_per_second]
    base = min(with_rates, key=lambda row: row.ranks, default=None)
    rows = [_compared(row, base) for row in rows]
    return Scaling(rows, [*dict.fromkeys([*told, *notes])])


def comparison(jobs: dict[str, Job], metrics: list[str] | None, notes: list[str]) -> Comparison:
    """Return the comparison table of jobs with different variants of the same training.

    Parameters
    ----------
    jobs
        The successful jobs by their variant's name; the others are compared with the first.
    metrics
        The metrics with a column; None for the first ones that all jobs have logged.
    notes
        What is to be said besides.
    """
    ways, told = [], []
    base: Row | None = None
    for name, job in jobs.items():
        row, said = measured(job)
        base = base or row
        last = {each: _last(job, each) for each in job.metrics}
        ways.append(Way(name, replace(_compared(row, base), efficiency=None), last))
        told += [f"{name}: {note}" for note in said]
    told += _unlike(ways)
    shown = metrics
    known = {each for way in ways for each in way.metrics}
    if shown is None:
        everywhere = [each for each in ways[0].metrics if all(each in way.metrics for way in ways)]
        shown = everywhere[:MOST_METRICS]
        if len(everywhere) > MOST_METRICS:
            told.append(f"Other metrics (metrics=[...]): {_some(everywhere[MOST_METRICS:])}.")
    for name in shown:
        if name not in known:
            told.append(
                f"No run has logged {name!r}; logged metrics: {_some(sorted(known)) or 'none'}."
            )
    return Comparison(ways, [*dict.fromkeys([*told, *notes])], shown)


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _unlike(ways: list[Way]) -> list[str]:
    """Return a note if the steps show that variants train differently."""
    sizes = {}
    for way in ways:
        if way.pace.samples_per_second and way.pace.step_seconds:
            sizes[way.name] = round(way.pace.samples_per_second * way.pace.step_seconds)
    if not sizes or max(sizes.values()) <= (1 + ALIKE) * min(sizes.values()):
        return []
    told = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return [f"These are not the same training, since samples per step differ: {told}."]


def _last(job: Job, name: str) -> float:
    """Return the mean of the last values of the ranks that were there at the end."""
    return job.metrics[name].last(job.present)


def _compared(row: Row, base: Row | None) -> Row:
    if base is None or not row.samples_per_second or not base.samples_per_second:
        return row
    speed_up = row.samples_per_second / base.samples_per_second
    return replace(row, speed_up=speed_up, efficiency=speed_up * base.ranks / row.ranks)


def measured(job: Job) -> tuple[Row, list[str]]:
    """Return the figures of one run, and notes about them."""
    paces, told = _main_loop(job)
    if not paces:
        return _from_log(job)
    steps = {rank: pace.seconds / pace.steps for rank, pace in paces.items()}
    step = _mean(steps.values())
    data = _mean(pace.waited / pace.steps for pace in paces.values()) or None
    waits = [pace.others / pace.steps for pace in paces.values() if pace.others is not None]
    ranks = len(job.present)
    communication = _mean(waits) if len(waits) == ranks else None
    if ranks == 1 and communication is None:
        communication = 0.0
    compute = None
    if data is not None and communication is not None:
        compute = max(0.0, step - data - communication)
    slow = _slowest(paces, steps)
    count = next(iter(paces.values())).steps
    known = [pace.samples / pace.seconds for pace in paces.values() if pace.samples is not None]
    samples = sum(known) if len(known) == len(paces) else None
    row = Row(
        ranks, samples, None, None, step, compute, data,
        communication, slow and slow.rank, slow and slow.seconds, count, _epoch(paces),
    )  # fmt: skip
    if samples is None:
        told.append(
            "Samples are unknown, and so is the speed-up: the loop's items do not tell how many "
            "they hold. Give nbdist.progress samples=, the number of samples in a step on one rank."
        )
    elif count < FEW_STEPS:
        few = f"On {counted(ranks, 'rank')}: measured over only {counted(count, 'step')}"
        told.append(f"{few}; let the cell run longer.")
    if any(pace.uneven for pace in paces.values()):
        told.append(
            "Some passes through the loop had far more items than others: the figures mix them, "
            "and the time of an epoch is unknown. Give an evaluation loop its own label."
        )
    return row, told


def _epoch(paces: dict[int, Pace]) -> float | None:
    """Return the time of one pass; None if a rank has not completed every pass."""
    if not all(pace.passes and not pace.uneven for pace in paces.values()):
        return None
    return max(pace.pass_seconds for pace in paces.values())


def _main_loop(job: Job) -> tuple[dict[int, Pace], list[str]]:
    """Return the training loop of each rank, and a note that names the loop if it is unclear.

    All ranks have this loop. It counts samples, or has no inner loop. Of nested loops it is the
    outermost one with more than a few steps, since inner loops may be evaluations or parts of a
    batch. Of several such loops it is the one that took most time.
    """
    ranks = job.present
    by_place = [
        {pace.place: pace for pace in job.pulses[rank].paces if pace.seconds > 0 and pace.place}
        for rank in ranks
        if rank in job.pulses
    ]
    if len(by_place) < len(ranks):
        return {}, []
    everywhere = set.intersection(*map(set, by_place))
    first = {place: pace for place, pace in by_place[0].items() if place in everywhere}
    able = {place: pace for place, pace in first.items() if pace.samples or pace.inner}
    long = {each for each, pace in able.items() if pace.inner or pace.steps >= FEW_STEPS / 2}
    outermost = [able[each] for each in long if not long.intersection(_around(able[each], first))]
    if not outermost:
        return {}, []
    found = max(outermost, key=lambda pace: pace.seconds)
    told = []
    if len(able) > 1 or len(_around(found, first)) > 1:
        told = [f"The figures are those of the loop {found.label or found.place}."]
    return {rank: paces[found.place] for rank, paces in zip(ranks, by_place, strict=True)}, told


def _around(pace: Pace, by_place: dict[str, Pace]) -> list[str]:
    """Return the places of the loops around a loop."""
    places = []
    while pace.outer in by_place and pace.outer not in places:
        places.append(pace.outer)
        pace = by_place[pace.outer]
    return places


def _slowest(paces: dict[int, Pace], steps: dict[int, float]) -> Slowest | None:
    own = {
        rank: (pace.seconds - pace.others) / pace.steps
        for rank, pace in paces.items()
        if pace.others is not None
    }
    return slowest(own, steps) if len(own) == len(paces) else slowest(steps)


def _from_log(job: Job) -> tuple[Row, list[str]]:
    """Return the figures of a cell without `nbdist.progress`, from its logged values."""
    row = Row(len(job.present))
    first = [job.metrics[name].of(job.ranks[0]) for name in job.metrics]
    times = [each.times[each.tries == each.tries.max(initial=0)] for each in first]
    longest = max(times, key=len, default=())
    last = longest[len(longest) // 2 :]
    if len(last) < 2 or last[-1] <= last[0]:  # noqa: PLR2004  # a step lies between two
        if any(pulse.paces for pulse in job.pulses.values()):
            return row, ["There are no figures: no loop is at the same place on all ranks."]
        return row, [f"There are no figures for a cell whose loop nbdist does not see: {WRITE}."]
    step = float(last[-1] - last[0]) / (len(last) - 1)
    return replace(row, step_seconds=step, steps=len(last) - 1), [
        f"Steps are what nbdist.log was called for; samples and speed-up are unknown: {WRITE}."
    ]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
