"""The faults of a storm: each runs cells that go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.faults import shown
from tests.helpers.notebook import distributed
from tests.helpers.storm import LOST, PLACES, SECONDS, Storm
from tests.helpers.storm_cells import cut_between, spread

if TYPE_CHECKING:
    from collections.abc import Callable


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
        storm.must_be_true(storm.parted())  # ZeRO's next step makes what has parted equal again
        # Shards of other steps may be of as many steps again after the next fault.
        storm.blurred |= storm.training.shards


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
    all_or_one = storm.chance.choice(["", str(rank), None])
    if all_or_one is not None:
        storm.run(f"%dist restart {all_or_one}".rstrip())
        if "nothing is missing" in storm.said:
            raise storm.fell("nothing is said to be missing, and all variables are")
    if all_or_one == "":
        storm.on_ranks(storm.begun_by())
    else:
        storm.replace(rank)


def _interrupted(storm: Storm) -> None:
    if storm.chance.random() < 0.5:
        storm.stopped(storm.armed("stall", storm.rank()), storm.flags())
    else:
        seconds = storm.chance.uniform(0, 0.3)
        storm.stopped("tell('in', '')\nwhile True: train(1)", storm.flags(), seconds=seconds)


def _stopped_twice(storm: Storm) -> None:
    """Press stop again when a rank is stuck in C code; it is killed, and the cell must say so."""
    # A lock that this thread has taken already: it waits for itself, and takes no core for that.
    lock = "lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)"
    stuck = f"for _ in range(1 + (rank == {storm.rank()})): libc.pthread_mutex_lock(lock)"
    cell = storm.stops(f"import ctypes\n{lock}\ntrain(1)\ntell('in', '')\n{stuck}")
    storm.kernel.expect("again to kill", SECONDS, cell)
    storm.kernel.interrupt()
    if storm.end(cell).ok:
        raise storm.fell("a cell ended well whose ranks were killed")


def _caught(storm: Storm) -> None:
    errors = storm.chance.choice(["KeyboardInterrupt", "(KeyboardInterrupt, RuntimeError)"])
    body = storm.chance.choice([storm.armed("stall", storm.rank()), "while True: train(1)"])
    tried = "\n".join(f"    {line}" for line in body.splitlines())
    seconds = storm.chance.uniform(0, 0.3)
    cell = storm.stopped(
        f"tell('in', '')\ntry:\n{tried}\nexcept {errors}: pass\n"
        "if rank in members:\n"
        "    total = torch.ones(1)\n"
        "    dist.all_reduce(total, group=group)\n"
        "    assert total == len(members), f'{float(total)} is another collective'\n",
        storm.flags(),
        seconds=seconds,
    )
    if "is another collective" in cell.error:
        raise storm.fell("a collective was paired with one that was interrupted")


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
    "spread over cells": spread,
    "cut between cells": cut_between,
    "stopped twice": _stopped_twice,
}
DEADLY = {
    *("dies", "dies at rest", "two die", "replaced", "stopped twice"),
    *("mismatched", "pending"),  # gloo itself ends a process that gets too many bytes
}
"""The faults of which ranks may die."""
