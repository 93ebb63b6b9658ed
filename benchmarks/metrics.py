"""What live metrics cost: on the rank that logs, and in the kernel that draws."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, Options

HOW = """
    One rank times its own calls, a thousand in a row, then rests while nbdist's thread writes them:
    a Python number, a CPU tensor, a hundred names at once. TensorBoard's `SummaryWriter.add_scalar`
    and livelossplot's `update` in the same process, one name a call. Slow-down: the quickstart's
    net on random images of its size, one thread; blocks of {block} steps with and without a call of
    `log` in every step take turns, by chance, and each pair gives one ratio. Bytes: what the page
    gets at a refresh with ten metrics of 2,000 steps on every rank. Kernel: 64 ranks log a hundred
    names ten times a second (a process of their own writes their files); what reading these and
    making the page's state four times a second takes of one core, every figure of it on the
    screen's side.
"""
BLOCK = 20
BASES = ("nothing", "item")
RANKS, NAMES, HERTZ = 64, 100, 10
COST = """
import json, sys, tempfile, time, torch, nbdist
from torch.utils.tensorboard import SummaryWriter
from livelossplot import PlotLosses
torch.set_num_threads(1)
def cost(work, calls=1000):
    taken = []
    for _ in range({repeats}):
        began = time.perf_counter()
        for i in range(calls):
            work(i)
        taken.append((time.perf_counter() - began) / calls * 1e6)
        time.sleep(0.3)
    return taken
scalar, many = torch.tensor(0.5), {{f"name{{i}}": 0.5 for i in range(100)}}
writer, plot = SummaryWriter(tempfile.mkdtemp()), PlotLosses(outputs=[])
costs = dict(
    number=cost(lambda i: nbdist.log(loss=0.5, step=i)),
    tensor=cost(lambda i: nbdist.log(tensor=scalar)),
    many=cost(lambda i: nbdist.log(many), calls=100),
    tensorboard=cost(lambda i: writer.add_scalar("loss", 0.5, i)),
    livelossplot=cost(lambda i: plot.update({{"loss": 0.5}})),
)
print("costs", json.dumps(costs))
"""
LOOP = """
import json, random, tempfile, time, torch, nbdist
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from livelossplot import PlotLosses
torch.set_num_threads(1)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 64, 10),
)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
images, labels = torch.rand(64, 1, 8, 8), torch.randint(10, (64,))
writer, plot = SummaryWriter(tempfile.mkdtemp()), PlotLosses(outputs=[])
ways = dict(
    nothing=lambda loss, i: None,
    nbdist=lambda loss, i: nbdist.log(loss=loss, step=i),
    tensorboard=lambda loss, i: writer.add_scalar("loss", loss, i),
    item=lambda loss, i: loss.item(),
    livelossplot=lambda loss, i: plot.update({{"loss": loss.item()}}),
)
taken, step = {{way: [] for way in ways}}, 0
order, shuffle = list(ways.items()), random.Random(0).shuffle
for turn in range({turns}):
    shuffle(order)  # one way may leave work, such as a thread that writes, to the time of the next
    for way, tell in order:
        began = time.perf_counter()
        for _ in range({block}):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            tell(loss, step)
            step += 1
        if turn:
            taken[way].append((time.perf_counter() - began) / {block} * 1e3)
print("loop", json.dumps(taken))
"""
RANKS_THAT_LOG = """
import sys, time
from nbdist.rank.metrics.logger import Recorder
folder, ranks, names, hertz, seconds = sys.argv[1], *map(int, sys.argv[2:])
recorders = [Recorder(folder, "1", rank) for rank in range(ranks)]
for recorder in recorders:
    recorder._thread = True  # packed below: 64 threads in one process would measure something else
for step in range(hertz * seconds):
    until = time.monotonic() + 1 / hertz
    for rank, recorder in enumerate(recorders):
        recorder.add(step, {f"name{i}": float(rank + i + step) for i in range(names)})
        recorder.pack()
    time.sleep(max(0.0, until - time.monotonic()))
"""


def measure(options: Options) -> Section:
    """Time calls and loops on a rank, then the work of a kernel with many ranks."""
    repeats, turns, seconds = (5, 20, 5) if options.quick else (15, 150, 20)
    costs = measured(partial(_in_rank, "costs", COST.format(repeats=repeats)))
    loop = measured(partial(_in_rank, "loop", LOOP.format(turns=turns, block=BLOCK)))
    figures = [
        Figure("`log(loss=0.5)`, a call", " us", Target("<=", 2), _costs(costs, "number")),
        Figure("`log(loss=cpu_tensor)`, a call", " us", Target("<=", 2), _costs(costs, "tensor")),
        Figure("`log` of 100 names, a call", " us", None, _costs(costs, "many")),
        Figure(
            "slow-down of a loop that logs every step",
            " %",
            Target("<=", 0.5),
            _slowdowns(loop, "nothing"),
        ),
        Figure(
            "the same, of a loop that reads `loss.item()` anyway",
            " %",
            Target("<=", 0.5),
            _slowdowns(loop, "item"),
        ),
    ]
    figures += [
        Figure(
            f"bytes a refresh, {ranks} ranks", " kB", Target("<=", 250),
            {NBDIST.name: measured(partial(_bytes, ranks))},
        )
        for ranks in (8, RANKS)
    ]  # fmt: skip
    figures.append(
        Figure(
            f"a core's share for {RANKS} ranks x {NAMES} metrics x {HERTZ} Hz", " %", None,
            {NBDIST.name: measured(partial(_kernel, seconds))},
        )
    )  # fmt: skip
    return Section("metrics", HOW.format(block=BLOCK), figures)


def _in_rank(what: str, code: str) -> dict[str, list[float]]:
    """Run a cell on one rank; return the times that it has printed."""
    with NBDIST.open(1, join=False) as notebook:
        text = notebook.run("import nbdist", NBDIST.cell(code), timeout=600).text
    found: dict[str, list[float]] = json.loads(text.partition(f"{what} ")[2].partition("\n")[0])
    return found


def _costs(costs: dict[str, list[float]] | str, what: str) -> dict[str, Measured | str]:
    if isinstance(costs, str):
        return {NBDIST.name: costs}
    peers = ("tensorboard", "livelossplot") if what == "number" else ()
    of = {NBDIST.name: what} | {peer: peer for peer in peers}
    return {name: Measured(tuple(costs[key])) for name, key in of.items()}


def _slowdowns(loop: dict[str, list[float]] | str, base: str) -> dict[str, Measured | str]:
    if isinstance(loop, str):
        return {NBDIST.name: loop}
    plain = loop[base]
    note = f"of {statistics.median(plain):.2f} ms a step"
    return {
        name: Measured(
            tuple(100 * (mine / bare - 1) for mine, bare in zip(taken, plain, strict=True)), note
        )
        for name, taken in loop.items()
        if name not in BASES
    }


def _state(metrics: Any) -> bytes:  # nbdist is imported in the benchmarks' environment only
    from nbdist.view.job_view import Seen
    from nbdist.view.page_state import packed
    from nbdist.view.panels import panels

    shown, left_out = panels(metrics.curves())
    return packed(Seen("Job", "running", 1.0, [], "", [], shown, ", ".join(left_out)))


def _bytes(ranks: int) -> Measured:
    from nbdist.metrics.job_metrics import Metrics
    from nbdist.rank.metrics.logger import Recorder

    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            recorder = Recorder(folder, "1", rank)
            for step in range(2000):
                recorder.add(step, {f"name{i}": float(rank + step) for i in range(10)})
            recorder.end()
        metrics = Metrics(Path(folder), "1", tuple(range(ranks)))
        metrics.read()
        return Measured((len(_state(metrics)) / 1e3,))


def _kernel(seconds: int) -> Measured:
    from nbdist.metrics.job_metrics import Metrics

    with tempfile.TemporaryDirectory() as folder:
        numbers = map(str, (RANKS, NAMES, HERTZ, seconds))
        command = [sys.executable, "-c", RANKS_THAT_LOG, folder, *numbers]
        shares = []
        with subprocess.Popen(command, env=dict(os.environ)) as ranks:
            metrics = Metrics(Path(folder), "1", tuple(range(RANKS)))
            while ranks.poll() is None:
                began, spent = time.monotonic(), time.process_time()
                metrics.read()
                _state(metrics)
                time.sleep(max(0.0, began + 0.25 - time.monotonic()))
                passed = time.monotonic() - began
                shares.append(100 * (time.process_time() - spent) / passed)
        points = sum(curve.points for curve in metrics.curves())
        return Measured(tuple(shares[4:]), f"{points:,} points")
