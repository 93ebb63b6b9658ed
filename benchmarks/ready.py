"""The time until two ranks are ready with their process group, from cold and warmed up."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, Options, System

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, MANY = 2, 8
HOW = """
    The cells that bring two ranks up and check `torch.distributed.get_world_size()` on them (for
    nbdist `%load_ext nbdist` and the first `%%distributed` cell) are sent to a fresh kernel in one
    go; the time runs until the kernel is idle after the last. Warmed up: `%load_ext nbdist` alone,
    then, when what it started behind itself uses no more processor time, the first cell. Peers have
    nothing to warm up. Each repeat is divided by the `python -c "import torch"` run just before it.
    nbdistributed is given no cell before its workers are connected; it would be lost.
"""


def measure(options: Options) -> Section:
    """Measure all systems from cold, and nbdist also warmed up."""
    repeats, of_peers = (3, 1) if options.quick else (9, 3)
    cold = {
        system.name: measured(
            partial(_repeat, partial(_cold, system), repeats if system is NBDIST else of_peers)
        )
        for system in options.systems
    }
    many = {NBDIST.name: measured(partial(_repeat, partial(_cold, NBDIST, MANY), repeats))}
    warm = {NBDIST.name: measured(partial(_repeat, _warm, repeats))}
    over = 'over `python -c "import torch"`'
    return Section(
        "ready",
        HOW,
        [
            Figure(f"2 ranks with the group formed, cold, {over}", "x", Target("<=", 0.95), cold),
            Figure(f"{MANY} ranks, the same", "x", Target("<=", 1.2), many),
            Figure(
                f"2 ranks, after `%load_ext` has warmed up, {over}", "x", Target("<=", 0.5), warm
            ),
        ],
    )


def _repeat(take: Callable[[], float], repeats: int) -> Measured:
    _import_torch()  # into the page cache
    imports, mine = [], []
    for _ in range(repeats):
        imports.append(_import_torch())
        mine.append(take())
    note = f"{statistics.median(mine):.2f} s over {statistics.median(imports):.2f} s"
    return Measured(tuple(m / i for m, i in zip(mine, imports, strict=True)), note)


def _import_torch() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def _cold(system: System, n: int = RANKS) -> float:
    with system.notebook(n) as notebook:
        reply = notebook.run(*system.cells(notebook, n, join=True))
        system.check_ranks(notebook, n)
        return reply.seconds


def _warm() -> float:
    with NBDIST.notebook(RANKS) as notebook:
        first, *rest = NBDIST.cells(notebook, RANKS, join=True)
        notebook.run(first)
        notebook.settle()
        reply = notebook.run(*rest)
        NBDIST.check_ranks(notebook, RANKS)
        return reply.seconds
