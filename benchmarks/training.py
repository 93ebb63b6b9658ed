"""The speed of a training with nbdist and with torchrun, each alone on the machine in its turn."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import psutil

from benchmarks.notebook import CellError
from benchmarks.processes import Family, processor_seconds
from benchmarks.report import Figure, Measured, Section, Target
from benchmarks.systems import NBDIST, Options, cores

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_SECONDS = 1.2  # of training: shorter than changes of other load on the machine
TURNS, LIVES = 6, 9
HANGS_SECONDS = 60.0
QUIET, LOOKS = 0.1, 2  # ready: less processor seconds than QUIET, LOOKS times in a row
HOW = """
    A DDP model of linear layers trains on as many ranks as there are cores ({ranks}), one torch
    thread each, printing its loss every 50 steps. The same text is run by `torchrun` and by nbdist:
    on ranks that stay, as a warm and as a cold script, and with `nbdist.progress` and `nbdist.log`
    in every step (torchrun's without either). Each is alone on the machine in its turn: all
    processes of the others (kernel, controller, launchers, ranks) are stopped meanwhile. They take
    turns of about {seconds} s, {turns} each, in rounds that run forth and back; then all processes
    are made anew, {lives} times, since two torchruns alone differ by some percent for as long as
    they live. The median of a life's rounds is one value. Clock: steps a second over torchrun's.
    Processor: the time that all processes of torchrun take for a step over that of all processes of
    nbdist, kernel included; threads that end within a turn are not seen.
"""
PROGRAM = """
{first}
import os, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
if not dist.is_initialized():
    dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
me = dist.get_rank()
layers = [nn.Linear({width}, {width}) if i % 2 == 0 else nn.ReLU() for i in range(8)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn({batch}, {width})
def train(steps):
    for step in {loop}:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        value = loss.item()
        {log}
        if me == 0 and step % 50 == 0:
            print(f"step {{step}}: loss {{value:.4f}}", flush=True)
train(20)
for turn in range({turns}):
    while me == 0 and not os.path.exists(f"{place}-go-{{turn}}"):
        time.sleep(0.02)
    dist.barrier()
    began = time.perf_counter()
    train({steps})
    seconds = time.perf_counter() - began
    dist.barrier()
    if me == 0:
        with open("{place}-part", "w") as file:
            file.write(str(seconds))
        os.rename("{place}-part", f"{place}-end-{{turn}}")
"""


class Size(NamedTuple):
    """The size of a model, and how long its step takes on a small machine."""

    milliseconds: int
    width: int
    batch: int
    ways: tuple[str, ...]


KEPT, WARM, COLD = "ranks that stay", "a warm script", "a cold script"
LOGGED = ", with `log` and `progress`"
SIZES = (
    Size(1, 128, 64, (KEPT,)),
    Size(4, 128, 550, (KEPT, WARM, COLD, KEPT + LOGGED, WARM + LOGGED)),
    Size(20, 256, 960, (KEPT, KEPT + LOGGED)),
)
CELLS = {
    KEPT: "%%distributed\n",
    WARM: "%%distributed -np {np} --launcher torchrun\n",
    COLD: "%%distributed -np {np} --launcher torchrun --cold\n",
}


class Turn(NamedTuple):
    """The result of a turn."""

    seconds: float
    processor: float
    """Processor seconds of all processes."""


@dataclass
class Trainer:
    """A family of processes that trains in its turn, and is stopped (SIGSTOP) otherwise."""

    family: Family
    place: Path
    """The names of the files that start a turn and report its end begin with this path."""
    turn: int = 0
    members: list[psutil.Process] = field(default_factory=list)

    def pause(self) -> None:
        """Stop all its processes."""
        self.members = self.family.living()
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all its processes run again."""
        self._signal(signal.SIGCONT)

    def train(self) -> Turn:
        """Let it train for one turn."""
        self.resume()
        time.sleep(0.1)  # for work that became due while it was stopped
        before = self.processor()
        self._file("go").touch()
        end, until = self._file("end"), time.monotonic() + HANGS_SECONDS
        while not end.exists():
            if time.monotonic() > until:
                raise CellError(f"{self.place.name} has not trained in {HANGS_SECONDS:.0f} s")
            time.sleep(0.02)
        after = self.processor()
        self.turn += 1
        self.pause()
        return Turn(float(end.read_text()), after - before)

    def _file(self, what: str) -> Path:
        return self.place.with_name(f"{self.place.name}-{what}-{self.turn}")

    def _signal(self, number: int) -> None:
        for process in self.members:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def processor(self) -> float:
        """Return the processor seconds of all its processes."""
        return sum(processor_seconds(process.pid) for process in self.members)


def measure(options: Options) -> Section:
    """Train models of all sizes in all ways."""
    turns, lives = (4, 2) if options.quick else (TURNS, LIVES)
    figures: list[Figure] = []
    for size in SIZES:
        figures += _figures(size, turns, lives)
    how = HOW.format(ranks=cores(), seconds=TURN_SECONDS, turns=turns, lives=lives)
    return Section("training", how, figures)


def _figures(size: Size, turns: int, lives: int) -> list[Figure]:
    found: list[list[dict[str, Turn]]] = []
    failed = ""
    for _ in range(lives):
        try:
            found.append(_life(size, turns))
        except Exception as error:  # the table shows it
            failed = f"failed: {error}"
            break
    steps = _steps(size)
    plain = [1e3 * turn["torchrun"].seconds / steps for life in found for turn in life]
    figures = []
    for way in size.ways:
        bound = None
        if size.milliseconds >= 4:  # a shorter step is mostly waiting
            bound = Target(">=", 0.985 if LOGGED in way else 0.99)
        what = f"steps of {size.milliseconds} ms on {way}, over torchrun's"
        for kind, ratio in (("clock", _by_clock), ("processor", _by_processor)):
            told: Measured | str = failed
            if not failed:
                values = [
                    statistics.median(ratio(turn["torchrun"], turn[way]) for turn in life)
                    for life in found
                ]
                note = f"torchrun's steps {statistics.median(plain):.2f} ms"
                told = Measured(tuple(values), note)
            figures.append(Figure(f"{what}, by the {kind}", "x", bound, {NBDIST.name: told}))
    return figures


def _by_clock(plain: Turn, mine: Turn) -> float:
    return plain.seconds / mine.seconds


def _by_processor(plain: Turn, mine: Turn) -> float:
    return plain.processor / mine.processor


def _steps(size: Size) -> int:
    return max(10, round(1e3 * TURN_SECONDS / size.milliseconds))


def _life(size: Size, turns: int) -> list[dict[str, Turn]]:
    """Start all trainers, give each its turns, and end all."""
    with ExitStack() as stack:
        trainers: dict[str, Trainer] = {}
        for way in ("torchrun", *size.ways):
            start: Callable[..., Trainer] = _torchrun if way == "torchrun" else _nbdist
            # More turns than are given, so no process ends within a turn that counts.
            trainers[way] = trainer = start(way, size, turns + 2, stack)
            stack.callback(trainer.resume)  # a stopped process could not end by itself
            trainer.train()  # not counted: buckets and caches are made now
        return [_round(trainers, forth=number % 2 == 0) for number in range(turns)]


def _round(trainers: dict[str, Trainer], *, forth: bool) -> dict[str, Turn]:
    ways = list(trainers)
    return {way: trainers[way].train() for way in (ways if forth else ways[::-1])}


def _torchrun(way: str, size: Size, turns: int, stack: ExitStack) -> Trainer:
    family = stack.enter_context(Family())
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="nbdist-bench-")))
    script = folder / "train.py"
    script.write_text(_program(size, turns, folder / way))
    launch = ["--standalone", "--nproc-per-node", str(cores()), str(script)]
    with (folder / "train.log").open("w") as log:
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *launch],
            cwd=folder, env=family.environ | {"OMP_NUM_THREADS": "1"},
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return _begun(Trainer(family, folder / way))


def _nbdist(way: str, size: Size, turns: int, stack: ExitStack) -> Trainer:
    kind = way.removesuffix(LOGGED)
    if kind == KEPT:
        notebook = stack.enter_context(NBDIST.open(cores(), join=True))
    else:
        notebook = stack.enter_context(NBDIST.notebook(cores()))
        notebook.run("%load_ext nbdist")
    place = notebook.folder / kind.replace(" ", "-")
    notebook.send(CELLS[kind].format(np=cores()) + _program(size, turns, place, logged=kind != way))
    return _begun(Trainer(notebook.family, place))


def _begun(trainer: Trainer) -> Trainer:
    """Wait until a trainer is ready for its first turn, and find all its processes."""
    quiet, until = 0, time.monotonic() + HANGS_SECONDS
    before = -1.0
    while quiet < LOOKS:
        if time.monotonic() > until:
            raise CellError(f"{trainer.place.name} is not ready after {HANGS_SECONDS:.0f} s")
        time.sleep(1)
        trainer.members = trainer.family.living()
        now = trainer.processor()
        quiet = quiet + 1 if now - before < QUIET and len(trainer.members) > cores() else 0
        before = now
    trainer.pause()
    return trainer


def _program(size: Size, turns: int, place: Path, *, logged: bool = False) -> str:
    return PROGRAM.format(
        first="import nbdist" if logged else "",
        loop="nbdist.progress(range(steps))" if logged else "range(steps)",
        log="nbdist.log(loss=value)" if logged else "pass",
        width=size.width, batch=size.batch, steps=_steps(size), turns=turns, place=place,
    )  # fmt: skip
