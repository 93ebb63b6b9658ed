"""Faults between the cells over which a notebook spreads a step.

A mistake that breaks no collective changes nothing: the step ends like one without mistakes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.helpers.faults import shown
from tests.helpers.notebook import distributed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.storm import Storm

WRONG_STOP = re.compile(r"have failed, and the traceback|w(?:as|ere) killed|could not be compared")
"""What is not said of a stop in Python code."""
GO_ON = "reached = next(going, None)"


def begin_step(storm: Storm, number: int) -> None:
    """Run the first part of a step on all ranks that train."""
    going = f"going = stages({number}, *held()) if rank in members else iter(())"
    storm.on_ranks(f"{going}\n{GO_ON}")


def spread(storm: Storm) -> None:
    """Make mistakes between the cells of a step; it must end as it does without them."""
    first = storm.chance.randrange(20, 40)
    steps = range(first, first + storm.chance.choice([1, 1, 2]))
    storm.on_ranks("twin = beside() if rank in members else None")
    for number in steps:
        begin_step(storm, number)
        _mistake(storm)
        for _ in range(storm.chance.randint(1, 4)):
            if storm.chance.random() < 0.3:  # at the end of a cell that has done its part
                storm.fails(f"{GO_ON}\ndist.barrier()\nlos")
            else:
                storm.on_ranks(GO_ON)
                _mistake(storm)
        storm.on_ranks("for reached in going: pass")
    last = f"train(1, 50)\nif rank in members: must_be_as(twin, [*{steps!r}, 50])\n"
    storm.on_ranks(f"{last}twin = going = reached = None")


def cut_between(storm: Storm) -> None:
    """Break something off between the cells of a step: nothing is lost that is not named."""
    storm.on_ranks("twin = beside() if rank in members else None")
    begin_step(storm, 20)
    for _ in range(storm.chance.randint(0, 3)):
        storm.on_ranks(GO_ON)
    if storm.chance.random() < 0.5:
        cut = "boom()", "dist.all_reduce(torch.ones(1), group=group)"
    else:
        storm.on_ranks("other = make() if rank in members else None")
        cut = "armed['backward'] = boom", "loss_of(other[0], 60).backward()"
    storm.fails(f"if rank == {storm.rank()}: {cut[0]}\nif rank in members: {cut[1]}")
    if storm.ends("for reached in going: pass").ok and not _named(storm):
        storm.on_ranks("if rank in members: must_be_as(twin, [20])")
    storm.on_ranks("twin = going = reached = other = None")


def _named(storm: Storm) -> bool:
    """Return whether any object of the training was named."""
    heads = {name.partition(".")[0].partition("[")[0] for name in storm.training.names}
    return any(re.search(rf"`{head}\b[^`]*`", storm.said) for head in heads)


def _mistake(storm: Storm) -> None:
    before = len(storm.said)
    MISTAKES[storm.chance.choice(list(MISTAKES))](storm)
    wrong = WRONG_STOP.search(storm.said[before:])
    if wrong:
        raise storm.fell(f"a mistake that broke nothing, and the cell says {wrong[0]!r}")


def _on_all(body: str, flags: str = "") -> Callable[[Storm], object]:
    return lambda storm: storm.fails(body, flags)


def _in_background(storm: Storm) -> None:
    cell = storm.run(distributed("los", "--async"))
    storm.run("try: nbdist.jobs()[-1].wait(200)\nexcept Exception as error: print(error)")
    storm.said += shown(cell)


def _stopped(body: str) -> Callable[[Storm], object]:
    def stop(storm: Storm) -> None:
        if storm.stopped(f"tell('in', '')\n{body}").ok:
            raise storm.fell("a cell ended well that was stopped")

    return stop


def _stopped_in_a_loop(storm: Storm) -> None:
    """Stop a loop of Python code; nobody sees a traceback, so that none is made."""
    for rank in range(storm.size):
        (storm.folder / f"read-{rank}").unlink(missing_ok=True)
    _stopped(LOOKED_AT)(storm)
    storm.on_ranks("linecache.getlines = lines")
    if any(storm.folder.glob("read-*")):
        raise storm.fell("a stop has made a traceback")


def _sync_of_different(storm: Storm) -> None:
    """Sync models that cannot be made equal; nothing may change."""
    odd = storm.chance.choice(
        ["nn.Linear(2, 2).to([torch.double, torch.float][rank % 2])", "nn.Linear(2, 2 + rank)"]
    )
    storm.on_ranks(f"odd = {odd}\nwas = bits(odd.state_dict())")
    cell = storm.end(storm.start("%dist sync odd"))
    if cell.ok:
        raise storm.fell("models of different kinds are said to be equal now")
    storm.on_ranks("assert bits(odd.state_dict()) == was, 'a sync that failed has changed a model'")


def _asked(storm: Storm) -> None:
    """Ask what the ranks have, which are equal at rest."""
    shared = {"model", "optimizer"}.intersection(storm.training.names)
    told = storm.run(f"%dist who {' '.join(shared)}").stdout if shared else ""
    if "values differ" in told and not storm.training.shards:
        raise storm.fell(f"the ranks are said to differ, and do not:\n{told}")


def _changed_in_notebook(storm: Storm) -> None:
    """Change a tensor in the notebook behind torch's back, after a cell has used it."""
    change = storm.chance.choice(["value.numpy()[0] += 1", "value.data[1] += 1"])
    storm.run("import torch\nvalue = torch.zeros(4)")
    storm.on_ranks("value.sum()")
    storm.run(change)
    if "`value` was changed in place" not in storm.on_ranks("value.sum()").text:
        raise storm.fell("a cell uses an old value, and it is not said")


LOOKED_AT = """
import linecache
lines = linecache.getlines
def looked_at(*which):
    tell("read", "")  # it is read for a traceback
    return lines(*which)
linecache.getlines = looked_at
while True: time.sleep(0.01)
"""
MISTAKES: dict[str, Callable[[Storm], object]] = {
    "none": lambda _: None,
    "name": _on_all("los"),
    "name on one rank": lambda storm: storm.fails(f"if rank == {storm.rank()}: los"),
    "name in a cell for some": lambda storm: storm.fails("los", f"--ranks {storm.rank()}"),
    "syntax": _on_all("los("),
    "division": _on_all("if rank in members: dist.all_reduce(torch.ones(1), group=group)\n1 / 0"),
    "assertion": _on_all("assert rank < 0, 'no such rank'"),
    "background": _in_background,
    "late": _on_all("time.sleep(60)", "--timeout 0.3"),
    "stopped": _stopped_in_a_loop,
    "stopped in system": _stopped("os.system('sleep 47')"),
    "sync of different": _sync_of_different,
    "asked": _asked,
    "changed in the notebook": _changed_in_notebook,
}
"""What breaks nothing, by name."""
