"""The notebook's names, brought to ranks and pulled back: a gigabyte; a thousand small values."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial

from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import IPYPARALLEL, NBDIST, PLAIN, Options, System

RANKS = 4
NAMES = 1000
HOW = """
    The notebook's tensor of {size} MiB is used by a cell on four ranks that have none (ipyparallel:
    `client[:].push`, then a cell that uses it), from sending that to the kernel being idle, in
    bytes of all four copies a second. Writable: each rank reads the first and last element of a
    copy that it may write to. Read: it sums it up. Written: it adds to an element of every page, so
    that the pages, which ranks share until then, are copied; what a rank does not write to is never
    copied. Pulled: `%dist pull` (`client[0].pull`) of a tensor that rank zero has made, then the
    same look. The first of each is not counted: it finds out how fast the machine finds so much
    free memory. Names: {names:,} ints, floats, texts, lists and dicts, all bound anew, are used by
    one cell on two ranks that names them one by one (ipyparallel: pushed as one dict first). How
    much of that is the cell itself, which IPython reads and compiles in the notebook and on the
    ranks, is told beside it.
"""
USES = {
    "there and writable": "big[0] + big[-1]",
    "there and all of it read": "big.sum()",
    "there and all of it written to": "big[::1024] += 1",
}
TARGETS = {"there and writable": Target(">=", 5)}
REBIND = """
for _i in range({names}):
    globals()[f"small{{_i}}"] = [_i, _i / 7, f"text {{_i}}", [_i], {{"i": _i}}][_i % 5]
"""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    mebibytes: int
    repeats: int
    repeats_of_peer: int
    cells: int


FULL = Plan(mebibytes=1024, repeats=7, repeats_of_peer=2, cells=25)
QUICK = Plan(mebibytes=256, repeats=3, repeats_of_peer=1, cells=10)


def measure(options: Options) -> Section:
    """Bring a tensor, pull it, and bring many names."""
    plan = QUICK if options.quick else FULL
    # The other peers can bring a variable only in the text of a cell.
    systems = [system for system in options.systems if system in (NBDIST, IPYPARALLEL)]
    big = {system.name: measured(partial(_big, system, plan)) for system in systems}
    small = {
        system.name: measured(partial(_nbdists_names if system is NBDIST else _peers_names, plan))
        for system in systems
    }

    def of(what: str) -> dict[str, Measured | str]:
        return {n: each if isinstance(each, str) else each[what] for n, each in big.items()}

    size = f"{plan.mebibytes} MiB"
    figures = [
        Figure(f"{size} to {RANKS} ranks: {use}", " GB/s", TARGETS.get(use), of(use))
        for use in USES
    ]
    figures += [
        Figure(f"{size} pulled from a rank", " GB/s", Target(">=", 1), of("pulled")),
        Figure(f"{NAMES:,} small names in one cell, all of it", " ms", Target("<", 50), small),
    ]
    return Section("names", HOW.format(size=plan.mebibytes, names=NAMES), figures)


def _big(system: System, plan: Plan) -> dict[str, Measured]:
    """Bring a tensor and pull one; return the speeds in gigabytes a second."""
    size = plan.mebibytes * 2**20
    repeats = plan.repeats if system is NBDIST else plan.repeats_of_peer
    push = [] if system is NBDIST else ['_ = client[:].push({"big": big}, block=True)']
    pull = "%dist pull own" if system is NBDIST else 'own = client[0].pull("own", block=True)'
    speeds: dict[str, list[float]] = {use: [] for use in (*USES, "pulled")}
    with system.open(RANKS, join=False) as notebook:
        made = f"import torch\n{{}} = torch.ones({size // 4})"
        notebook.run(made.format("big"), system.cell(made.format("own")))

        def brought(use: str) -> None:
            reply = notebook.run(*push, system.cell(USES[use]), timeout=600)
            speeds[use].append(RANKS * size / reply.seconds / 1e9)
            notebook.run(system.cell("del big"))

        # The last use by itself: it needs so much memory that a virtual machine must ask its host.
        *light, heavy = USES
        for uses in ((*light, "pulled"), (heavy,)):
            for _ in range(repeats + 1):
                for use in uses:
                    if use != "pulled":
                        brought(use)
                        continue
                    reply = notebook.run(f"{pull}\nown[0] + own[-1]", timeout=600)
                    speeds["pulled"].append(size / reply.seconds / 1e9)
                    notebook.run("del own")
    # The first values are left out: the system had to find free memory then.
    return {use: Measured(tuple(found[1:])) for use, found in speeds.items()}


def _cell() -> str:
    """Return a cell that uses every name once."""
    listed = ", ".join(f"small{i}" for i in range(NAMES))
    return f"assert len([{listed}]) == {NAMES}"


def _nbdists_names(plan: Plan) -> Measured:
    cell = _cell()
    brought, there, plainly = [], [], []
    with NBDIST.open(2, join=False) as notebook, PLAIN.open(1, join=False) as plain:
        for each in (notebook, plain):
            each.run(REBIND.format(names=NAMES))
        for number in range(-1, plan.cells):
            notebook.run(REBIND.format(names=NAMES))
            taken = [
                # With a number, so that no text comes twice and is found in a cache.
                each.run(f"{first}{cell}  # {number}").seconds * 1e3
                for each, first in (
                    (notebook, NBDIST.first_line),
                    (notebook, NBDIST.first_line),
                    (plain, ""),
                )
            ]
            if number >= 0:  # the first warms up
                brought.append(taken[0])
                there.append(taken[1])
                plainly.append(taken[2])
    note = (
        f"{statistics.median(there):.1f} ms with nothing to bring, "
        f"{statistics.median(plainly):.1f} ms in a plain kernel"
    )
    return Measured(tuple(brought), note)


def _peers_names(plan: Plan) -> Measured:
    names = [f"small{i}" for i in range(NAMES)]
    push = f"_ = client[:].push({{_n: globals()[_n] for _n in {names}}}, block=True)"
    cell = IPYPARALLEL.cell(_cell())
    with IPYPARALLEL.open(2, join=False) as notebook:
        taken = []
        for number in range(-1, plan.cells):
            notebook.run(REBIND.format(names=NAMES))
            seconds = notebook.run(push, f"{cell}  # {number}").seconds
            if number >= 0:
                taken.append(seconds * 1e3)
    return Measured(tuple(taken))
