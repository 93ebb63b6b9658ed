"""A storm: one fault after the other in a training, and the conditions that hold after each.

Either the ranks are equal, bit for bit, or the cell has named what differs, and the remedy that the
cell has named makes them equal. Nothing else is named: neither what is equal, nor what never was.
And the training goes on like one that begins with the same state.
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
from tests.helpers.training_kinds import TRAININGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel
    from tests.helpers.trainings import Training

SECONDS = 25.0
"""A cell that has not ended by then hangs, if the machine is idle."""
PLACES = ("before", "forward", "backward", "between", "optimizer", "later")
TOLD = re.compile(
    r"^.*(?:[Nn]o(?:t| longer) equal|not (?:be )?compared|of different steps).*$", re.MULTILINE
)
UNEQUAL = re.compile(
    r"^.*(?:[Nn]o(?:t| longer) equal|of different steps|makes? them equal).*$", re.MULTILINE
)
NAMED = re.compile(r"`([\w.\[\]]+)`")
SYNC = re.compile(r"`(%dist sync [^`]+ --from \d+)`")
DEAD = re.compile(r"^Rank (\d+) will be restarted before the next cell", re.MULTILINE)
ALL_DEAD = "All ranks will be restarted before the next cell"
LACKS = re.compile(r"missing: .*\b(model|optimizer)\b")
LOST = re.compile(r"`[\w.\[\]]+` is lost: .* Re-create it")
NONSENSE = re.compile(
    r"INTERNAL ASSERT|GLHF|nbdist itself failed|Connection (closed|reset) by peer|pair closure"
    r"|SIGSEGV"
)
"""Texts that no cell may show, as users cannot understand them."""


def named(words: re.Pattern[str], text: str) -> set[str]:
    """Return the objects that lines with some words name."""
    return {name for line in words.findall(text) for name in NAMED.findall(line)}


STOPPED = "stopped at cell line"
"""Of a rank that was interrupted, maybe within an optimizer's step."""


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
    checked: int = 0
    """How much of that was checked for false words."""
    began_anew: bool = False
    """Whether the training was made anew since then."""
    blurred: bool = False
    """Whether shards may have been stopped within a step: nobody can tell how far each went."""

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
        # What is to differ between ranks is equal before the first step.
        steps = self.chance.choice([0, 1, 1, 3]) or int(bool(self.training.differing))
        self.on_ranks(f"{self.begun_by()}train({steps})", f"-np {self.size}")

    def begun_by(self) -> str:
        """Return the cell that makes the training."""
        self.began_anew = True
        return self.training.cell(str(self.folder), self.seed)

    def throw(self, fault: Callable[[Storm], object], *, deadly: bool = False) -> None:
        """Let one fault happen, and check all conditions afterwards.

        Parameters
        ----------
        fault
            Runs cells that go wrong.
        deadly
            Whether ranks may die of it.
        """
        self.said, self.checked, self.began_anew, self.blurred = "", 0, False, False
        fault(self)
        dead = set(map(int, DEAD.findall(self.said)))
        if not deadly and (dead or ALL_DEAD in self.said):
            raise self.fell("a rank has died, though nothing killed it")
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
        self.must_be_true(parted)
        parted = [name for name in parted if name in self.training.names]
        told = named(TOLD, self.said)
        silent = [name for name in parted if not any(name.startswith(each) for each in told)]
        if self.blurred and told:
            silent = []
        if silent:
            raise self.fell(f"{', '.join(silent)}: other values on other ranks, without a word")
        mended = SYNC.findall(self.said)
        if told and self.chance.random() < 0.5:
            self.must_not_be_told_again()
        for command in dict.fromkeys(mended):
            self.run(command)
        left = self.parted() if mended else parted
        if [name for name in left if any(name in command.split() for command in mended)]:
            raise self.fell(f"{', '.join(left)}: not equal after {mended}")
        # A step that was torn may have changed only shards, which cannot be compared here.
        if left or (told and self.training.shards):
            ways = ["load()"] if self.training.shards else []
            ways.append(f"make_equal({len(self.training.names)})")
            self.on_ranks(self.chance.choice(ways))

    def must_be_true(self, parted: list[str]) -> None:
        """Check that only such objects were called different that are, and were not before."""
        said, self.checked = self.said[self.checked :], len(self.said)
        if self.began_anew or self.blurred:
            return
        parted = [name for name in parted if name in self.training.names]
        told = named(UNEQUAL, said)
        told |= {word for each in SYNC.findall(said) for word in each.split()[2:-2]}
        false = [name for name in told if not any(each.startswith(name) for each in parted)]
        if false:
            raise self.fell(f"{', '.join(sorted(false))}: a false word, for this did not part")

    def must_not_be_told_again(self) -> None:
        """Check that a mistake which breaks nothing names nothing, though ranks differ already."""
        said = len(self.said)
        self.fails(f"if rank == {self.rank()}: los")
        again = UNEQUAL.search(self.said, said)
        if again:
            raise self.fell(f"it was said before, and nothing has changed since: {again[0]}")

    def must_go_on(self) -> None:
        """Check that all ranks can train on together."""
        parted = self.parted("armed.clear()\ngo_on(3)\n")
        parted = [name for name in parted if name in self.training.names]
        if parted:
            raise self.fell(f"{', '.join(parted)}: the ranks part when they train on")

    def parted(self, before: str = "") -> list[str]:
        """Run `before` on the ranks; return the names of objects that then differ between ranks."""
        for rank in self.members:
            (self.folder / f"stands-{rank}").unlink(missing_ok=True)
        self.on_ranks(f"{before}say_how_it_stands()")
        names = self.training.names + self.training.differing
        found = [json.loads((self.folder / f"stands-{r}").read_text()) for r in self.members]
        return [
            name
            for name, values in zip(names, zip(*found, strict=True), strict=True)
            if len(set(values)) > 1
        ]

    def replace(self, rank: int, dead: Iterable[int] = ()) -> None:
        """Replace a rank by a new process with the variables of a living rank."""
        like = self.chance.choice([each for each in self.members if each not in {rank, *dead}])
        self.run(f"%dist restart {rank} --like {like}")
        lost = LACKS.search(self.said)
        if self.training.shards and not lost:
            raise self.fell("the shards of a dead rank are lost, and it was not said")
        if lost and (self.training.shards or self.training.unpicklable):
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
        self.blurred |= self.training.shards and STOPPED in self.said
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
        self.blurred |= self.training.shards and seconds is not None
        return self.end(self.stops(body, flags, seconds=seconds))

    def stops(self, body: str, flags: str = "", *, seconds: float | None = None) -> Cell:
        """Like `stopped`, but do not wait for the end of the cell."""
        mark = [self.folder / f"in-{rank}" for rank in range(self.size)]
        for path in mark:
            path.unlink(missing_ok=True)
        cell = self.start(distributed(body, flags))
        self.kernel.until(lambda: cell.done or any(p.exists() for p in mark), SECONDS, cell)
        pause = 0.2 if seconds is None else seconds
        time.sleep(pause)
        self.cells.append(f"# ... and stop was pressed {pause:.2f} s after `in` was written")
        self.kernel.interrupt()
        return cell

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
