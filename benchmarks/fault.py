"""The time from a rank's exception, while another rank waits in a collective, to the cell's end."""

from __future__ import annotations

import re
from functools import partial

from benchmarks.notebook import CellError, Notebook
from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, Options, System

RANKS = 2
HOW = """
    Rank 1 raises an exception that carries the time while rank 0 waits for it in `all_reduce`; the
    time runs until the kernel is idle. After each fault the next cell must finish an `all_reduce`
    on the same ranks. A peer is given {limit:.0f} s, once.
"""
RAISE = """
import time, torch, torch.distributed as dist
if dist.get_rank() == 1:
    time.sleep(0.3)
    raise ValueError(f"raised at {time.time()!r}")
dist.all_reduce(torch.ones(1))
"""
NEXT = """
import torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"sum {total.item():g}")
"""


def measure(options: Options) -> Section:
    """Let a rank fail many times with nbdist, and once with each peer."""
    faults, limit = (5, 3.0) if options.quick else (20, 10.0)
    figure = Figure(
        "a rank raises, its peer is in `all_reduce`: to the end of the cell",
        " s",
        Target("<", 2),
        {
            system.name: measured(partial(_measure, system, faults, limit))
            for system in options.systems
        },
    )
    return Section("fault", HOW.format(limit=limit), [figure])


def _measure(system: System, faults: int, limit: float) -> Measured:
    with system.open(RANKS, join=True) as notebook:
        repeats = faults if system is NBDIST else 1
        return Measured(tuple(_fault(system, notebook, limit) for _ in range(repeats)))


def _fault(system: System, notebook: Notebook, limit: float) -> float:
    reply = notebook.run(system.cell(RAISE), timeout=limit, check=False)
    raised = re.search(r"raised at ([\d.]+)", reply.text)
    if raised is None:
        raise CellError(f"the cell ended, but the exception is nowhere in it: {reply.text.strip()}")
    after = notebook.run(system.cell(NEXT), timeout=limit)
    if f"sum {RANKS}" not in after.text:
        raise CellError("the next cell does not run")
    return reply.ended - float(raised[1])
