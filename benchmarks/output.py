"""A million printed lines, from one rank and from eight; and the time of one line to the page."""

from __future__ import annotations

import json
import re
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.notebook import CellError
from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, PLAIN, Options, System

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.notebook import Notebook, Reply

MANY = 8
HOW = """
    `for i in range({lines:_}): print(f"line {{i}}")` on rank zero of two, and on every rank of
    eight under `--output all`; a kernel without ranks (plain) prints as many lines in all in turns
    with it. Time: from sending the cell to the kernel being idle, over the plain kernel's. Kept:
    lines found afterwards, for nbdist in the ranks' logs and each in its place, for the others
    anywhere on the page (what is sent again counts once). Page: bytes of all messages the kernel
    publishes for the cell. Memory: the peak of the kernel's resident memory during the cell, less
    what it had before. A peer is given {limit:.0f} s, once, and rank zero's lines only. Print to
    page: rank zero of two prints the time {prints} times, at uneven intervals of about 0.1 s; each
    value is the time from before the print until the line is in the client's hands. A display:
    `display(HTML(...))` {displays} times on rank zero of two, which of nbdist's ranks wait until
    the kernel has it, so that no print overtakes it; each value is the time of one, as the rank
    measured it.
"""
LOGS = """
import json, nbdist
_job = nbdist.jobs()[-1]
print(json.dumps([[str(_job.log(rank)), *_job.parts[rank]] for rank in _job.ranks]))
"""
STAMPS = """
import random, time
import torch.distributed as dist
for i in range({prints}):
    time.sleep(random.uniform(0.05, 0.15))
    if dist.get_rank() == 0:
        print(f"printed at {{time.time()!r}}", flush=True)
"""


DISPLAYS = """
import json, time
from IPython.display import HTML, display
import torch.distributed as dist
took = []
for i in range({displays} if dist.get_rank() == 0 else 0):
    time.sleep(0.01)
    began = time.perf_counter()
    display(HTML(f"<b>{{i}}</b>"))
    took.append(time.perf_counter() - began)
if took:
    print("each took", json.dumps(took), flush=True)
"""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    lines: int
    repeats: int
    limit: float  # seconds that a peer may take
    prints: int
    displays: int


FULL = Plan(lines=1_000_000, repeats=3, limit=60.0, prints=100, displays=200)
QUICK = Plan(lines=100_000, repeats=3, limit=10.0, prints=30, displays=50)


@dataclass(frozen=True)
class Loud:
    """The result of a cell that has printed a lot."""

    seconds: float
    kept: int
    megabytes: float  # to the page
    grown: float  # megabytes by which the kernel's memory has grown


def measure(options: Options) -> Section:
    """Print a lot in all systems, then a little."""
    plan = QUICK if options.quick else FULL
    figures = []
    with PLAIN.open(1, join=False) as plain:
        for n, printing in ((2, 1), (MANY, MANY)):
            systems = options.systems if printing == 1 else (NBDIST,)
            found = {
                system.name: measured(partial(_loud, system, n, printing, plain, plan))
                for system in systems
            }
            figures += _figures(found, printing, plan)
        basis = measured(partial(_latency, PLAIN, plan))
    latencies = {
        system.name: measured(partial(_latency, system, plan)) for system in options.systems
    }
    mine = latencies[NBDIST.name]
    if isinstance(mine, Measured) and isinstance(basis, Measured):
        note = f"a plain kernel's {basis.median:.1f} ms"
        latencies[NBDIST.name] = Measured(mine.values, note)
    figures.append(Figure("from print to page", " ms", Target("<", 30), latencies))
    shown = {system.name: measured(partial(_display, system, plan)) for system in options.systems}
    mine = shown[NBDIST.name]
    alone = measured(partial(_display, PLAIN, plan))
    if isinstance(mine, Measured) and isinstance(alone, Measured):
        shown[NBDIST.name] = Measured(mine.values, f"a plain kernel's {alone.median:.2f} ms")
    figures.append(Figure("a display by a rank", " ms", None, shown))
    how = HOW.format(lines=plan.lines, limit=plan.limit, prints=plan.prints, displays=plan.displays)
    return Section("output", how, figures)


def _figures(
    found: dict[str, tuple[Measured, list[Loud]] | str], printing: int, plan: Plan
) -> list[Figure]:
    by = "rank zero" if printing == 1 else f"each of {printing} ranks, `--output all`"
    what = f"{plan.lines:,} lines by {by}"

    def of(pick: Callable[[Loud], float]) -> dict[str, Measured | str]:
        return {
            name: each if isinstance(each, str) else Measured(tuple(map(pick, each[1])))
            for name, each in found.items()
        }

    ratios = {name: each if isinstance(each, str) else each[0] for name, each in found.items()}
    return [
        Figure(f"{what}: time over a plain kernel's", "x", Target("<=", 1), ratios),
        Figure(
            f"{what}: kept", " lines", Target(">=", plan.lines * printing), of(lambda x: x.kept)
        ),
        Figure(f"{what}: to the page", " MB", Target("<", 1), of(lambda x: x.megabytes)),
        Figure(f"{what}: the kernel's memory grows", " MB", Target("<", 50), of(lambda x: x.grown)),
    ]


def _loud(
    system: System, n: int, printing: int, plain: Notebook, plan: Plan
) -> tuple[Measured, list[Loud]]:
    limit, repeats = (600.0, plan.repeats) if system is NBDIST else (plan.limit, 1)
    loop = f'for i in range({plan.lines}): print(f"line {{i}}")'
    body = (
        loop if printing > 1 else f"import torch.distributed as d\nif d.get_rank() == 0:\n {loop}"
    )
    first = "%%distributed --output all\n" if printing > 1 else system.first_line
    # A plain kernel prints as many lines as all ranks together.
    alone = f'for _ in range({printing}):\n for i in range({plan.lines}): print(f"line {{i}}")'
    ratios, louds, bases = [], [], []
    with system.open(n, join=True) as notebook:
        for _ in range(repeats):
            base = plain.run(alone, timeout=600).seconds
            kernel = Peak(notebook.pid)
            reply = notebook.run(first + body, timeout=limit)
            grown = kernel.grown()
            kept = _in_logs(notebook, plan) if system is NBDIST else _on_page(reply)
            page = sum(heard.size for heard in reply.heard) / 1e6
            louds.append(Loud(reply.seconds, kept, page, grown))
            ratios.append(reply.seconds / base)
            bases.append(base)
    mine = statistics.median(loud.seconds for loud in louds)
    note = f"{mine:.1f} s over {statistics.median(bases):.1f} s"
    return Measured(tuple(ratios), note), louds


def _in_logs(notebook: Notebook, plan: Plan) -> int:
    """Count the lines that are at their right place in the logs of the ranks."""
    kept = 0
    for path, begin, end in json.loads(notebook.run(LOGS).text):
        with Path(path).open() as log:
            log.seek(begin)
            found = log.read(end - begin).splitlines()
        kept += sum(line == f"line {i}" for i, line in zip(range(plan.lines), found, strict=False))
    return kept


def _on_page(reply: Reply) -> int:
    """Count the different lines on the page; a line that was sent several times counts once."""
    return len(set(re.findall(r"(?m)\bline (\d+)$", reply.text)))


class Peak:
    """The peak of a process's resident memory from now on; only for Linux."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")
        (self._proc / "clear_refs").write_text("5")  # resets the peak to the present size
        self._before = self._megabytes()

    def grown(self) -> float:
        """Return how far the memory has been above its size at the start, in megabytes."""
        return self._megabytes() - self._before

    def _megabytes(self) -> float:
        (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", (self._proc / "status").read_text())
        return int(peak) * 1024 / 1e6


def _latency(system: System, plan: Plan) -> Measured:
    reply = _of_rank_zero(system, STAMPS.format(prints=plan.prints))
    first: dict[str, float] = {}
    for heard in reply.heard:
        for stamp in re.findall(r"printed at (\d+\.\d+)\b", heard.text):
            first.setdefault(stamp, heard.at)
    if len(first) < plan.prints:
        raise CellError(f"{len(first)} of {plan.prints} prints reached the page")
    return Measured(tuple(1e3 * (at - float(stamp)) for stamp, at in first.items()))


def _display(system: System, plan: Plan) -> Measured:
    reply = _of_rank_zero(system, DISPLAYS.format(displays=plan.displays))
    took = re.search(r"each took (\[.*?\])", reply.text)
    if took is None:
        raise CellError(f"no rank told how long its displays took: {reply.text[-200:]}")
    return Measured(tuple(1e3 * seconds for seconds in json.loads(took[1])))


def _of_rank_zero(system: System, body: str) -> Reply:
    """Run a body in which only rank 0 works, on two ranks or in a kernel without ranks."""
    if system is PLAIN:
        body = body.replace("import torch.distributed as dist", "").replace("dist.get_rank()", "0")
    with system.open(2 if system is not PLAIN else 1, join=system is not PLAIN) as notebook:
        time.sleep(1)  # the start of the ranks may still cause some work
        return notebook.run(system.cell(body), timeout=120)
