"""Rows that show a job's loops and ranks, for any view. Any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbdist.job.deaths import Death, how_died
from nbdist.machine.amounts import in_time
from nbdist.metrics.slowest_rank import slowest

if TYPE_CHECKING:
    from nbdist.job.job import Job
    from nbdist.wire.activity import Bar
    from nbdist.wire.messages import Pulse

FEW_STEPS = 10
"""With fewer steps of a loop no rank is called slow."""
WAITING_SECONDS = 1.0
"""Shorter waits for other ranks are normal, and not shown."""


class BarRow(NamedTuple):
    """A loop of rank 0, with the rates of all ranks together."""

    label: str
    depth: int
    done: int
    total: int | None
    rate: float | None
    """Iterations a second."""
    samples: float | None
    """Samples a second of all ranks together."""
    left: float | None
    """The remaining seconds."""
    still: float | None
    """Seconds since the last step, if this is unusually long; then the rate is unknown."""


class RankRow(NamedTuple):
    """A rank; unknown values are None."""

    rank: int
    host: str
    device: str
    state: str
    step: float | None
    """Seconds a step, without waits for other ranks if these are known."""
    cpu: float | None
    memory: int | None
    gpu: float | None
    gpu_memory: int | None


def bars(pulses: dict[int, Pulse]) -> list[BarRow]:
    """Return the loops of the first rank that has any."""
    first = next((pulses[rank].bars for rank in sorted(pulses) if pulses[rank].bars), [])
    return [_bar(bar, depth, pulses) for depth, bar in enumerate(first)]


def _bar(bar: Bar, depth: int, pulses: dict[int, Pulse]) -> BarRow:
    samples = [
        pulse.bars[depth].samples
        for pulse in pulses.values()
        if depth < len(pulse.bars) and pulse.bars[depth].still is None
    ]
    known = [each for each in samples if each is not None]
    rates: tuple[float | None, float | None, float | None] = (None, None, None)
    if bar.still is None:
        rates = (bar.rate, sum(known) if known and len(known) == len(samples) else None, bar.left)
    return BarRow(bar.label, depth, bar.done, bar.total, *rates, bar.still)


def straggler(pulses: dict[int, Pulse]) -> str:
    """Name the slowest rank, if it is clearly slower."""
    # Synchronous ranks differ only in their own time without waits. If this is unknown for a rank,
    # its whole step must not be compared with the own times of other ranks.
    own = {rank: step for rank, pulse in pulses.items() if (step := _own(pulse)) is not None}
    whole = {
        rank: step
        for rank, pulse in pulses.items()
        if (step := _step(pulse, FEW_STEPS)) is not None
    }
    found = slowest(own, whole) if len(own) == len(pulses) else slowest(whole)
    return "" if found is None else str(found)


def _own(pulse: Pulse) -> float | None:
    """Return a rank's seconds a step in its innermost loop, without waits for others."""
    return next((bar.own for bar in reversed(pulse.bars) if bar.own is not None), None)


def _step(pulse: Pulse, fewest: int = 1) -> float | None:
    """Return a rank's seconds a step in its innermost loop with at least this many steps."""
    counted = (bar for bar in reversed(pulse.bars) if not bar.tqdm and bar.done >= fewest)
    return next((1 / bar.rate for bar in counted if bar.rate), None)


def row(job: Job, rank: int, pulse: Pulse | None) -> RankRow:
    """Return the row of a job's rank."""
    state, host = _state(job, rank, pulse), job.hosts.get(rank, "")
    if pulse is None:
        return RankRow(rank, host, "", state, None, None, None, None, None)
    taken = pulse.vitals
    step = _own(pulse) or _step(pulse)
    return RankRow(
        rank, host, pulse.device, state, step, taken.cpu, taken.rss, taken.gpu, taken.gpu_memory
    )


def _state(job: Job, rank: int, pulse: Pulse | None) -> str:
    fault = job.errors.get(rank)
    if isinstance(fault, Death):
        return how_died(fault)
    if fault is not None:
        return f"{fault.name}" + ("" if fault.line is None else f" in line {fault.line}")
    if rank in job.gone:
        return "gone"
    if job.seconds is not None:
        return job.state
    if pulse is None:
        return "starting" if job.began else job.state
    return doing(pulse)


def doing(pulse: Pulse) -> str:
    """Describe what a rank is doing."""
    line = "running" if pulse.line is None else f"line {pulse.line}"
    if pulse.waiting is not None and pulse.waiting.since >= WAITING_SECONDS:
        return f"{line}, in {pulse.waiting.op} for {in_time(int(pulse.waiting.since))}"
    return line
