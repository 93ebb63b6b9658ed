"""What N idle ranks cost: processes, unique memory of each rank, and processor time."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psutil

from benchmarks.processes import processor_seconds
from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST

if TYPE_CHECKING:
    from benchmarks.systems import Options, System

REST, IDLE, REPEATS = 2, 5, 6
NIGHT_SECONDS = 60
FASTER_KERNEL = """
from nbdist.published import beacon
from nbdist.hub.link import hub_loop
beacon.SELDOM_SECONDS, beacon.BEAT_SECONDS, hub_loop.BEAT_SECONDS = 0.002, 0.01, 0.01
"""
FASTER_RANKS = "from nbdist.rank import hub_connection\nhub_connection.PULSE_SECONDS = 0.001"
GLOO = "gloo_tcp_loop"
HOW = f"""
    N ranks with torch imported and the process group formed, idle for {REST} s. Processes: all that
    came of the kernel, known by an environment variable they inherit; the kernel itself, which any
    notebook has, is not counted. Memory: USS (pages no other process maps) of each rank; the spread
    is over the ranks. Processor: what all these processes and the kernel take in {IDLE} s, without
    gloo's own loops: a thread of torch's in each rank that looks a hundred times a second. A night:
    the looks of an idle kernel and of its ranks come five hundred times as often, for
    {NIGHT_SECONDS} s.
"""


def measure(options: Options) -> Section:
    """Count the processes of N ranks, and measure their memory and processor time."""
    figures = []
    for n in (2,) if options.quick else (2, 8):
        processes: dict[str, Measured | str] = {}
        memory: dict[str, Measured | str] = {}
        processor: dict[str, Measured | str] = {}
        for system in options.systems:
            found = measured(partial(_idle, system, n))
            all_three = (found, found, found) if isinstance(found, str) else found
            processes[system.name], memory[system.name], processor[system.name] = all_three
        figures += [
            Figure(f"processes for {n} ranks", "", Target("<=", n + 3), processes),
            Figure(f"unique memory of an idle rank, of {n}", " MB", Target("<", 50), memory),
            Figure(
                f"{n} idle ranks and all that serves them",
                " % of a core",
                Target("<", 0.5),
                processor,
            ),
        ]
    figures.append(
        Figure(
            "memory that an idle cluster of 2 grows by in a night", " MB", Target("<", 1),
            {NBDIST.name: measured(_night)},
        )
    )  # fmt: skip
    return Section("footprint", HOW, figures)


def _idle(system: System, n: int) -> tuple[Measured, Measured, Measured]:
    with system.open(n, join=True) as notebook:
        pids = system.rank_pids(notebook)
        time.sleep(REST)
        megabytes = [_unique(pid) for pid in pids]
        processes = [each.pid for each in notebook.processes()]
        percents = tuple(_percent([notebook.pid, *processes]) for _ in range(REPEATS))
        count = float(len(processes))
        return Measured((count,)), Measured(tuple(megabytes)), Measured(percents)


def _night() -> Measured:
    """Return the growth of the kernel and its processes; the note has the largest one."""
    with NBDIST.open(2, join=True) as notebook:
        notebook.run(NBDIST.cell(FASTER_RANKS))
        notebook.run(FASTER_KERNEL)
        pids = [notebook.pid, *(each.pid for each in notebook.processes())]
        time.sleep(REST)
        before = [_unique(pid) for pid in pids]
        time.sleep(NIGHT_SECONDS)
        grown = [_unique(pid) - old for pid, old in zip(pids, before, strict=True)]
    return Measured((sum(grown),), f"the most of one process {max(grown):.2f} MB")


def _unique(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().uss) / 1e6


def _percent(pids: list[int]) -> float:
    """Return the percentage of a core that processes use."""

    def taken() -> float:
        return sum(processor_seconds(pid, without=GLOO) for pid in pids)

    before = taken()
    time.sleep(IDLE)
    return 100 * (taken() - before) / IDLE
