"""The time of an empty cell, from sending the cell until the kernel is idle again."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, PLAIN, Options, System

if TYPE_CHECKING:
    from benchmarks.notebook import Notebook

TARGETS = {2: 1.35, 8: 2.0, 16: 2.8}
TURN = 10  # cells of one system, then of the other: other load on the machine affects both
HOW = """
    A cell `pass` is sent through jupyter_client to a real kernel; the time runs until the kernel's
    `idle` message. Each system runs alone with a plain kernel (ipykernel, no ranks) beside it, and
    the two take turns of {turn} cells. A round is {cells} cells of each (fewer where they take
    longer than {seconds:g} s) and gives one ratio of medians. Warm-up rounds are not counted.
    Where the system puts threads differs for as long as they live: all is made anew {lives} times.
"""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    lives: int
    rounds: int
    cells: int
    seconds: float  # a slow system's round ends here
    most_peers: int  # ranks of a peer, which take long to start


FULL = Plan(lives=3, rounds=4, cells=100, seconds=2.5, most_peers=16)
QUICK = Plan(lives=1, rounds=5, cells=50, seconds=1.5, most_peers=2)


def measure(options: Options) -> Section:
    """Measure every system on every number of ranks."""
    plan = QUICK if options.quick else FULL
    with PLAIN.open(1, join=False) as plain:
        figures = [
            Figure(
                f"empty cell on {n} ranks, over a plain kernel's",
                "x",
                Target("<=", bound),
                {
                    system.name: measured(partial(_ratio, system, n, plain, plan))
                    for system in options.systems
                    if system is NBDIST or n <= plan.most_peers
                },
            )
            for n, bound in TARGETS.items()
        ]
    return Section(
        "empty_cell",
        HOW.format(turn=TURN, cells=plan.cells, seconds=plan.seconds, lives=plan.lives),
        figures,
    )


def _ratio(system: System, n: int, plain: Notebook, plan: Plan) -> Measured:
    ratios, ours, theirs = [], [], []
    for _ in range(plan.lives):
        with system.open(n, join=False) as notebook:
            time.sleep(1)  # the start of the ranks may still cause some work
            for round_number in range(-1, plan.rounds):
                mine, base = _round((notebook, system.cell("pass")), (plain, "pass"), plan)
                if round_number >= 0:
                    ratios.append(mine / base)
                    ours.append(mine)
                    theirs.append(base)
    note = f"{1e3 * statistics.median(ours):.1f} ms over {1e3 * statistics.median(theirs):.1f} ms"
    return Measured(tuple(ratios), note)


def _round(mine: tuple[Notebook, str], base: tuple[Notebook, str], plan: Plan) -> list[float]:
    until = time.monotonic() + plan.seconds
    seconds: tuple[list[float], list[float]] = ([], [])
    while len(seconds[0]) < plan.cells and time.monotonic() < until:
        for (notebook, cell), taken in zip((mine, base), seconds, strict=True):
            taken += [notebook.run(cell).seconds for _ in range(TURN)]
    return [statistics.median(taken) for taken in seconds]
