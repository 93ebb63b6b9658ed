"""A storm: one fault after the other in a training, and the conditions that hold after each.

Either the ranks are equal, bit for bit, or the cell has named what differs, and the remedy that the
cell has named makes them equal. And the training goes on like one that begins with the same state.
"""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.helpers.faults import shown
from tests.helpers.kernel import LateError
from tests.helpers.notebook import distributed
from tests.helpers.trainings import TRAININGS, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

SECONDS = 25.0
"""A cell that has not ended by then hangs, if the machine is idle."""
PLACES = ("before", "forward", "backward", "between", "optimizer", "later")
TOLD = re.compile(
    r"^.*(?:[Nn]o(?:t| longer) equal|not (?:be )?compared|of different steps).*$", re.MULTILINE
)
NAMED = re.compile(r"`([\w.\[\]]+)`")
SYNC = re.compile(r"`(%dist sync [^`]+ --from \d+)`")
DEAD = re.compile(r"^Rank (\d+) will be restarted before the next cell", re.MULTILINE)
ALL_DEAD = "All ranks will be restarted before the next cell"
LACKS = re.compile(r"missing: .*\b(model|optimizer)\b")
LOST = re.compile(r"`[\w.\[\]]+` is lost: .* Re-create it")
NONSENSE = re.compile(
    r"INTERNAL ASSERT|GLHF|nbdist itself failed|Connection (closed|reset) by peer|pair closure"
)
"""Texts that no cell may show, as users cannot understand them."""


class Fell(AssertionError):
    """A condition does not hold after a fault; the message has the reason and the cells."""


@dataclass
class Storm:
    """A training, and the faults that happen to it.

    Parameters
    ----------
    kernel
        Has nbdist loaded; its cluster is made as large as is needed.
    kind
        One of `TRAININGS`.
    size
        The number of ranks.
    seed
        Decides all that is left to chance.
    folder
        Where ranks write down how they stand.
    """

    kernel: Kernel
    kind: str
    size: int
    seed: int
    folder: Path
    chance: random.Random = field(init=False)
    cells: list[str] = field(default_factory=list)
    """All cells that were run, to be pasted into a notebook."""
    said: str = ""
    """What the cells have shown since the last fault began."""

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.kind} {self.size} {self.seed}")  # noqa: S311

    @property
    def training(self) -> Training:
        """The kind of training."""
        return TRAININGS[self.kind]

    @property
    def members(self) -> list[int]:
        """The ranks that train."""
        return [0, 1] if self.kind == "subgroup" else list(range(self.size))

    def begin(self) -> None:
        """Begin the training."""
        steps = self.chance.choice([0, 1, 1, 3])
        self.on_ranks(f"{self.begun_by()}train({steps})", f"-np {self.size}")

    def begun_by(self) -> str:
        """Return the cell that makes the training."""
        return self.training.cell(str(self.folder), self.seed)

    def throw(self, fault: str) -> None:
        """Let one fault happen, and check all conditions afterwards."""
        self.said = ""
        FAULTS[fault](self)
        dead = set(map(int, DEAD.findall(self.said)))
        if ALL_DEAD in self.said or dead >= set(self.members):  # no rank has variables to copy
            self.on_ranks(self.begun_by())
            dead.clear()
        for rank in sorted(dead):
            self.replace(rank, dead)
        self.must_be_equal_or_told()
        self.must_go_on()

    # -- what must hold ------------------------------------------------------------------------

    def must_be_equal_or_told(self) -> None:
        """Check that the ranks are equal, or that the cell named the differences and a remedy."""
        parted = self.parted()
        told = {name for line in TOLD.findall(self.said) for name in NAMED.findall(line)}
        silent = [name for name in parted if not any(name.startswith(each) for each in told)]
        if silent:
            raise self.fell(f"{', '.join(silent)}: other values on other ranks, without a word")
        mended = SYNC.findall(self.said)
        for command in dict.fromkeys(mended):
            self.run(command)
        left = self.parted() if mended else parted
        if [name for name in left if any(name in command.split() for command in mended)]:
            raise self.fell(f"{', '.join(left)}: not equal after {mended}")
        if left:
            self.on_ranks("make_equal()")

    def must_go_on(self) -> None:
        """Check that all ranks can train on together."""
        parted = self.parted("armed.clear()\ngo_on(3)\n")
        if parted:
            raise self.fell(f"{', '.join(parted)}: the ranks part when they train on")

    def parted(self, before: str = "") -> list[str]:
        """Run `before` on the ranks; return the names of objects that then differ between ranks."""
        for rank in self.members:
            (self.folder / f"stands-{rank}").unlink(missing_ok=True)
        self.on_ranks(f"{before}say_how_it_stands()")
        found = [json.loads((self.folder / f"stands-{r}").read_text()) for r in self.members]
        return [
            name
            for name, values in zip(self.training.names, zip(*found, strict=True), strict=True)
            if len(set(values)) > 1
        ]

    def replace(self, rank: int, dead: Iterable[int] = ()) -> None:
        """Replace a rank by a new process with the variables of a living rank."""
        like = self.chance.choice([each for each in self.members if each not in {rank, *dead}])
        self.run(f"%dist restart {rank} --like {like}")
        if self.training.shards:
            if not LACKS.search(self.said):
                raise self.fell("the shards of a dead rank are lost, and it was not said")
            self.on_ranks(self.begun_by())

    def fell(self, why: str) -> Fell:
        """Return the error for a condition that does not hold, with the way to reproduce it."""
        cells = "\n\n".join(self.cells)
        return Fell(
            f"{why}\n--- {self.kind}, {self.size} ranks, seed {self.seed}, in these cells ---\n"
            f"{cells}\n--- said since the last fault ---\n{self.said}"
        )

    # -- cells ---------------------------------------------------------------------------------

    def on_ranks(self, body: str, flags: str = "") -> Cell:
        """Run a distributed cell that must not fail."""
        return self.run(distributed(body, flags))

    def run(self, code: str) -> Cell:
        """Run a cell that must not fail."""
        cell = self.end(self.start(code))
        if not cell.ok:
            raise self.fell(f"a cell failed that must not: {cell.error.splitlines()[0]}")
        return cell

    def start(self, code: str) -> Cell:
        """Start a cell, and note it."""
        self.cells.append(code)
        return self.kernel.start(code)

    def end(self, cell: Cell) -> Cell:
        """Wait for a cell, and note its output."""
        try:
            self.kernel.wait(SECONDS, cell)
        except LateError as late:
            raise self.fell(f"a cell hangs\n{shown(cell)}") from late
        self.said += f"{shown(cell)}\n"
        nonsense = NONSENSE.search(cell.text)
        if nonsense:
            raise self.fell(f"a cell shows {nonsense[0]!r}")
        return cell

    def ends(self, body: str, flags: str = "") -> Cell:
        """Run a distributed cell that may fail."""
        return self.end(self.start(distributed(body, flags)))

    def fails(self, body: str, flags: str = "") -> Cell:
        """Run a distributed cell that must fail."""
        cell = self.ends(body, flags)
        if cell.ok:
            raise self.fell("a cell did not fail that must")
        return cell

    def stopped(self, body: str, flags: str = "", *, seconds: float | None = None) -> Cell:
        """Run a distributed cell, and press stop `seconds` after a rank has stalled or begun."""
        mark = [self.folder / f"in-{rank}" for rank in range(self.size)]
        for path in mark:
            path.unlink(missing_ok=True)
        cell = self.start(distributed(body, flags))
        self.kernel.until(lambda: cell.done or any(p.exists() for p in mark), SECONDS, cell)
        pause = 0.2 if seconds is None else seconds
        time.sleep(pause)
        self.cells.append(f"# ... and stop was pressed {pause:.2f} s after `in` was written")
        self.kernel.interrupt()
        return self.end(cell)

    # -- chance --------------------------------------------------------------------------------

    def rank(self) -> int:
        """Return one of the ranks that train."""
        return self.chance.choice(self.members)

    def armed(self, what: str, rank: int, place: str = "") -> str:
        """Return a part of a cell: it trains until something happens to a rank at some place."""
        place = place or self.chance.choice(PLACES)
        steps = self.chance.randrange(3)
        arm = f"if rank == {rank}: armed[{place!r}] = {what}"
        return f"train({steps})\n{arm}\ntrain(3, {steps})"

    def flags(self) -> str:
        """Return the flags of a cell for all ranks that train, and at times for no others."""
        alone = len(self.members) < self.size and self.chance.random() < 0.5
        return "--ranks 0,1" if alone else ""


def _raises(place: str) -> Callable[[Storm], object]:
    return lambda storm: storm.fails(storm.armed("boom", storm.rank(), place), storm.flags())


def _dies(storm: Storm) -> None:
    storm.fails(storm.armed("die", storm.rank()))
    if storm.chance.random() < 0.3:
        storm.on_ranks("pass")


def _dies_at_rest(storm: Storm) -> None:
    rank = storm.rank()
    storm.run(
        f"import os, time\nkilled = nbdist.cluster().ranks[{rank}]\nos.kill(killed.pid, 9)\n"
        "while killed.alive: time.sleep(0.01)"
    )
    storm.replace(rank)


def _two_die(storm: Storm) -> None:
    left = storm.rank()
    storm.fails(f"train(1)\nif rank in {storm.members} and rank != {left}: die()\ntrain(1)")


def _raises_again(storm: Storm) -> None:
    for _ in range(3):
        storm.fails(f"armed.clear()\n{storm.armed('boom', storm.rank())}", storm.flags())


def _in_background(storm: Storm) -> None:
    stopped = storm.chance.random() < 0.5
    body = storm.armed("stall" if stopped else "boom", storm.rank())
    for rank in storm.members:
        (storm.folder / f"in-{rank}").unlink(missing_ok=True)
    cell = storm.run(distributed(body, f"{storm.flags()} --async"))
    if stopped:
        marks = [storm.folder / f"in-{rank}" for rank in storm.members]
        storm.kernel.until(lambda: any(mark.exists() for mark in marks), SECONDS, cell)
        storm.run("nbdist.jobs()[-1].cancel()")
    storm.run("try: nbdist.jobs()[-1].wait(200)\nexcept Exception as error: print(error)")
    storm.said += shown(cell)


def _making(storm: Storm) -> None:
    """Interrupt the making of a group or a model by an error on one rank."""
    made = storm.chance.choice(["dist.new_group()", "DDP(net(), process_group=group)", "make()"])
    raised = f"train(1)\nif rank == {storm.rank()}: boom()"
    storm.fails(f"{raised}\nspare = {made} if rank in members else dist.new_group()")


def _restarted(storm: Storm) -> None:
    rank = storm.rank()
    if storm.chance.random() < 0.5:
        storm.run(f"%dist restart {rank}")
    storm.replace(rank)


def _interrupted(storm: Storm) -> None:
    if storm.chance.random() < 0.5:
        storm.stopped(storm.armed("stall", storm.rank()), storm.flags())
    else:
        seconds = storm.chance.uniform(0, 0.3)
        storm.stopped("tell('in', '')\nwhile True: train(1)", storm.flags(), seconds=seconds)


def _caught(storm: Storm) -> None:
    errors = storm.chance.choice(["KeyboardInterrupt", "(KeyboardInterrupt, RuntimeError)"])
    body = storm.chance.choice([storm.armed("stall", storm.rank()), "while True: train(1)"])
    tried = "\n".join(f"    {line}" for line in body.splitlines())
    seconds = storm.chance.uniform(0, 0.3)
    storm.stopped(
        f"tell('in', '')\ntry:\n{tried}\nexcept {errors}: pass", storm.flags(), seconds=seconds
    )


def _caught_fault(storm: Storm) -> None:
    """One rank raises an error within a step, catches it, and all ranks go on."""
    rank = storm.rank()
    tried = "\n".join(f"    {line}" for line in storm.armed("boom", rank).splitlines())
    storm.ends(f"try:\n{tried}\nexcept ValueError: pass", "--timeout 2")


def _part(storm: Storm) -> None:
    """Only one rank trains, and waits for the others in vain."""
    storm.ends("train(2)", f"--ranks {storm.rank()} --timeout 1")


def _beside(storm: Storm) -> None:
    """Let a cell fail while another rank has a job of its own."""
    rest = max(set(range(storm.size)) - set(storm.members), default=None)
    if rest is None:
        rest = storm.size - 1
        storm.run(distributed("time.sleep(0.5)", f"--ranks {rest} --async"))
        others = ",".join(str(rank) for rank in range(rest))
        storm.fails("raise ValueError('beside')", f"--ranks {others}")
    else:
        storm.run(distributed("time.sleep(0.5)", f"--ranks {rest} --async"))
        storm.fails(storm.armed("boom", storm.rank()), "--ranks 0,1")
    storm.run("nbdist.jobs()[-2].wait(200)")


def _mismatched(storm: Storm) -> None:
    rank = storm.rank()
    body = (
        f"train(1)\nif rank == {rank}: dist.all_reduce(torch.ones(2), group=group)\n"
        "elif rank in members: dist.barrier(group=group)\ntrain(1)\ndist.barrier()"
    )
    storm.ends(body, "--timeout 2")


def _pending(storm: Storm) -> None:
    """End a cell while a collective is pending that only one rank has begun."""
    begun = (
        f"train(1)\nif rank == {storm.rank()}:\n"
        "    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)"
    )
    if storm.chance.random() < 0.5:
        storm.on_ranks(begun)
        storm.ends("train(1)", "--timeout 2")
    else:
        # The next collective may pair with it and wait forever, as with torchrun.
        storm.ends(f"{begun}\n{storm.armed('boom', storm.rank())}", "--timeout 5")


def _destroyed(storm: Storm) -> None:
    who = storm.chance.choice(["True", f"rank == {storm.rank()}"])
    storm.on_ranks(f"train(1)\nif {who}: dist.destroy_process_group()")
    storm.on_ranks("pass")  # this cell reports what was lost
    if LOST.search(storm.said):
        storm.on_ranks(storm.begun_by())


def _synced(storm: Storm) -> None:
    names = [n for n in storm.training.names if n in ("model", "optimizer")]
    if not storm.training.shards and names:
        storm.run(f"%dist sync {' '.join(names)} --from {storm.rank()}")


FAULTS: dict[str, Callable[[Storm], object]] = {
    **{f"raises {place}": _raises(place) for place in PLACES},
    "raises again": _raises_again,
    "making": _making,
    "dies": _dies,
    "dies at rest": _dies_at_rest,
    "two die": _two_die,
    "replaced": _restarted,
    "interrupted": _interrupted,
    "interrupt caught": _caught,
    "part of the ranks": _part,
    "mismatched": _mismatched,
    "pending": _pending,
    "destroyed": _destroyed,
    "fault caught": _caught_fault,
    "another job beside": _beside,
    "in the background": _in_background,
    "synced": _synced,
}
