"""What N idle ranks cost: processes, and memory that is a rank's own."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psutil

from benchmarks.report import Figure, Measured, Section, Target, measured

if TYPE_CHECKING:
    from benchmarks.systems import Options, System

REST = 2
HOW = f"""
    N ranks with torch imported and the process group formed, idle for {REST} s. Processes: all that
    came of the kernel, known by an environment variable they inherit; the kernel itself, which any
    notebook has, is not counted. Memory: USS (pages no other process maps) of each rank; the spread
    is over the ranks.
"""


def measure(options: Options) -> Section:
    """Count the processes of N ranks and take the memory of each rank."""
    figures = []
    for n in (2,) if options.quick else (2, 8):
        processes: dict[str, Measured | str] = {}
        memory: dict[str, Measured | str] = {}
        for system in options.systems:
            found = measured(partial(_idle, system, n))
            both = (found, found) if isinstance(found, str) else found
            processes[system.name], memory[system.name] = both
        figures += [
            Figure(f"processes for {n} ranks", "", Target("<=", n + 3), processes),
            Figure(f"unique memory of an idle rank, of {n}", " MB", Target("<", 50), memory),
        ]
    return Section("footprint", HOW, figures)


def _idle(system: System, n: int) -> tuple[Measured, Measured]:
    with system.open(n, join=True) as notebook:
        pids = system.rank_pids(notebook)
        time.sleep(REST)
        megabytes = [psutil.Process(pid).memory_full_info().uss / 1e6 for pid in pids]
        return Measured((float(len(notebook.processes())),)), Measured(tuple(megabytes))
