"""Starts ranks and forms their process group, also after a fault or with new ranks.

Each way of `nbdist.backends.groups.recovery` is tried in turn until one holds. Behind them all
stands that ranks are replaced and get their variables back, so that the next cell runs. Hub's
thread.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from nbdist.backends.choice import check_torch
from nbdist.backends.groups.recovery import ANEW, IN_PLACE, REPLACE, Recovery, told, ways
from nbdist.errors import LaunchError, NbdistError
from nbdist.hub.link import copies
from nbdist.hub.link.agent_connections import NoAnswer
from nbdist.hub.link.log_folders import log_size
from nbdist.job.deaths import how_died
from nbdist.job.report import said_of
from nbdist.launchers.scripts import horovodrun
from nbdist.machine import gpus
from nbdist.machine.amounts import counted, in_time
from nbdist.wire.rank_calls import (
    FormGroup,
    GiveNames,
    ListGroups,
    ListNames,
    OpenStore,
    TakeNames,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from nbdist.hub.hub import Hub

PROBE_SECONDS = 20.0
"""How long to wait for the probe of torch; after it groups are re-created ("anew")."""
GPU_SECONDS, GPU_LOOK_SECONDS = 10.0, 0.05
"""How long the driver may take to free a process's GPU memory, and how often we look."""
GPU_PATIENCE = 4
"""With GPUs time limits are this many times longer: NCCL takes seconds to connect, and a GPU may
have much work to finish first."""
GIVE_SECONDS = 20.0
"""Time limit for a rank to write its variables before it is replaced."""


class InVain(LaunchError):
    """No way to form the group succeeded; names the ranks on which the last way failed."""

    def __init__(self, tried: list[NotFormed]) -> None:
        whys = "; then: ".join(dict.fromkeys(str(problem) for problem in tried))
        super().__init__(
            f"the process group could not be formed: {whys}. `%dist restart` restarts all ranks."
        )
        self.ranks = tried[-1].ranks if tried else []


class NotFormed(NbdistError):
    """A way to form the group failed; names the ranks on which it failed."""

    def __init__(self, why: str, ranks: list[int], *, stuck: bool) -> None:
        super().__init__(why)
        self.ranks = ranks
        self.stuck = stuck
        """Whether a rank did not answer, which no other way would change."""


async def start(hub: Hub, size: int, backend: str, environ: dict[str, str]) -> None:
    """Start all ranks and form their group."""
    hub.backend, hub.environ, hub.generation = backend, environ, 0
    warm, engine = await asyncio.gather(hub.host.ready(), hub.host.engine_info())
    if backend == "ddp":
        check_torch(warm.torch)
    if backend == "horovod":
        horovodrun.demand("--backend horovod")
    hub.watch_warm()
    await hub.bear(range(size), size, engine)
    await form(hub)


async def replace(hub: Hub, ranks: Iterable[int]) -> dict[int, set[str]]:
    """Replace these ranks by new processes; return the names that each now lacks."""
    ranks = sorted(ranks)
    engine = await hub.host.engine_info()
    for rank in ranks:
        await hub.end([rank])
        await hub.host.forget_engine(rank)
    await _gpus_let_go(hub, ranks)
    await hub.bear(ranks, hub.size, engine)
    await form(hub)
    others = [rank for rank in hub.ranks if rank not in ranks]
    if not others:
        return {rank: set() for rank in ranks}
    return await copies.lacking(hub, others[0], ranks)


async def _gpus_let_go(hub: Hub, ranks: list[int]) -> None:
    """Wait until the driver has freed the GPU memory of ended processes."""
    gone = {hub.ranks[rank].pid: rank for rank in ranks if hub.ranks[rank].gpu_memory}
    deadline = hub.loop.time() + GPU_SECONDS
    while gone and (holding := gone.keys() & await asyncio.to_thread(gpus.holders)):
        if hub.loop.time() > deadline:
            hub.notes += [
                f"The GPU memory of rank {gone[pid]}'s ended process (pid {pid}) is not free after "
                f"{in_time(GPU_SECONDS)}; the rank's new process may lack GPU memory."
                for pid in sorted(holding)
            ]
            return
        await asyncio.sleep(GPU_LOOK_SECONDS)


async def heal(hub: Hub, tell: Callable[[str], None]) -> None:
    """Replace dead ranks, renew the process group, and report what was done."""
    dead = [rank for rank in hub.ranks.values() if rank.death is not None or rank.spoilt]
    if dead:
        how = ", ".join(
            f"rank {one.rank} "
            + (how_died(one.death) if one.death and not one.spoilt else "has lost its GPU")
            for one in dead
        )
        tell(f"Since the last cell {how}; {'they are' if dead[1:] else 'it is'} being restarted.")
        lacking = await replace(hub, (rank.rank for rank in dead))
        if len(dead) == hub.size:
            tell("All ranks were restarted; their variables are lost.")
        for rank, names in lacking.items():
            if names:
                tell(
                    f"{restarted(rank, names)} `%dist restart {rank} --like RANK` copies another "
                    "rank's variables."
                )
            elif len(dead) < hub.size:
                tell(restarted(rank, names))
    else:
        await form(hub)


def restarted(rank: int, missing: Iterable[str]) -> str:
    """Say that a rank was replaced, and which names it lacks."""
    names = sorted(missing)
    if not names:
        return f"Rank {rank} restarted, nothing is missing."
    again = f"re-run the cells that define {'it' if len(names) == 1 else 'them'}"
    return f"Rank {rank} restarted, missing: {', '.join(names)} ({again})."


async def form(hub: Hub) -> None:
    """Form the process group on every rank; `Hub.notes` gets messages about losses.

    Raises
    ------
    LaunchError
        If no way succeeds.
    """
    first = hub.generation == 0
    recovery = Recovery() if first else await recovery_of(hub)
    forced = "" if first else _way_to_begin_with(hub)
    tried: list[NotFormed] = []
    possible = ways(recovery, forced) if hub.backend == "ddp" else [IN_PLACE, REPLACE]
    for way in possible[:-1]:  # behind them all stands that ranks are replaced, see below
        if tried and (tried[-1].stuck or first):
            break
        try:
            lost, reset = await _by(hub, way, recovery)
        except NotFormed as problem:
            tried.append(problem)
            hub.given_up |= way == ANEW
            continue
        hub.stale = hub.given_up = False
        hub.notes += await _sharing(hub) if first else _told(way, lost, tried, recovery)
        hub.notes += [
            f"`{name}` has lost {what}, because its step was broken off: begin the step again."
            for name, what in sorted(reset.items())
        ]
        if tried or way == ANEW:
            _pass_over_output(hub)
        return
    if first or hub.replacing:
        raise InVain(tried)
    await _replace(hub, tried)


async def _sharing(hub: Hub) -> list[str]:
    """Return a message if ranks share GPUs, which is slower."""
    hub.sharing = ""
    on_gpus = [rank for rank in hub.ranks.values() if rank.device.startswith("cuda")]
    used = {(rank.host, rank.device) for rank in on_gpus}
    if hub.backend != "ddp" or not used or len(used) == hub.size:
        return []
    world, *_ = await hub.call(0, ListGroups())
    hub.sharing = world.backend
    told = f"{counted(hub.size, 'rank')} share {counted(len(used), 'GPU')}"
    slower = (
        f"{told}. The process group uses {world.backend}, because nccl needs a GPU for each rank."
    )
    return [f"{told} under nccl." if world.backend == "nccl" else slower]


def _way_to_begin_with(hub: Hub) -> str:
    """Return the way that must be tried first; '' if the probe of torch decides."""
    if hub.given_up:
        return ANEW
    return IN_PLACE if hub.replacing else hub.settings.recovery


async def recovery_of(hub: Hub) -> Recovery:
    """Wait for the result of the probe of torch, and return it."""
    if hub.backend != "ddp":
        return Recovery()
    with suppress(asyncio.TimeoutError):
        return await asyncio.wait_for(asyncio.shield(hub.host.warm.probed), PROBE_SECONDS)
    warm = await hub.host.ready()
    why = "the test of this torch has not ended yet"
    return Recovery(warm.recovery.torch, groups=warm.recovery.groups or why, fsdp=why)


async def _by(hub: Hub, way: str, recovery: Recovery) -> tuple[dict[str, str], dict[str, str]]:
    """Form a generation in this way; return the lost variables with reasons, and what was reset."""
    hub.generation += 1
    on_gpus = any(rank.device.startswith("cuda") for rank in hub.ranks.values())
    seconds = hub.settings.form_seconds * (GPU_PATIENCE if on_gpus else 1)
    try:
        ports = await hub.call(0, OpenStore(), timeout=seconds)
    except NbdistError as err:
        raise NotFormed(str(err), [0], stuck=True) from err
    order = FormGroup(ports, hub.generation, way, recovery.fsdp)
    calls = {
        hub.loop.create_task(hub.call(rank, order, timeout=seconds)): rank for rank in hub.ranks
    }
    ended, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
    problems = {calls[call]: call.exception() for call in ended if call.exception()}
    if not problems:
        answers = {rank: call.result() for call, rank in calls.items()}
        hub.broken_off |= {
            rank: formed.broken_off for rank, formed in answers.items() if formed.broken_off
        }
        lost = {name: why for formed in answers.values() for name, why in formed.lost.items()}
        reset = {name: what for formed in answers.values() for name, what in formed.reset.items()}
        return lost, reset
    why = str(next(iter(problems.values()))).partition("\n")[0]  # torch writes paragraphs
    await hub.free({call: calls[call] for call in waiting}, why)
    stuck = any(isinstance(call.exception(), NoAnswer) for call in calls)
    raise NotFormed(why, sorted(problems), stuck=stuck)


def _pass_over_output(hub: Hub) -> None:
    """Skip torch's output about cut connections, so that the next cell does not show it."""
    for rank in hub.ranks.values():
        rank.log_end = max(rank.log_end, log_size(rank.logs / f"rank{rank.rank}.log"))


def _told(way: str, lost: dict[str, str], tried: list[NotFormed], recovery: Recovery) -> list[str]:
    """Return messages about how the groups were recovered."""
    if way == IN_PLACE and not lost:
        return []
    notes = []
    if way == ANEW:
        why = str(tried[-1]) if tried else recovery.groups or recovery.models
        notes.append(
            "The process groups were re-created, and DDP models with them"
            + (f", because they could not be renewed in place: {why}." if why else ".")
        )
        notes.append(
            "Re-create objects that hold a process group elsewhere than in a variable or an "
            "attribute."
        )
    notes += [f"`{name}` is lost: {why}. Re-create it." for name, why in sorted(lost.items())]
    return notes


async def _replace(hub: Hub, tried: list[NotFormed]) -> None:
    """Replace the ranks on which forming failed by new processes with their variables."""
    wrong = set(tried[-1].ranks) if tried else set(hub.ranks)
    files = {rank: hub.host.folder / f"own-{rank}.pickle" for rank in hub.ranks}
    given: dict[int, dict[str, str] | None] = {}
    hub.replacing = hub.uncompared = True
    try:
        while more := sorted(wrong - given.keys()):
            given |= {rank: await _give(hub, rank, files[rank]) for rank in more}
            try:
                await replace(hub, more)
            except LaunchError as problem:
                # Only the first failing rank is known before the others are freed.
                wrong |= set(problem.ranks) if isinstance(problem, InVain) else set()
                if wrong == given.keys():
                    hub.notes.append(f"{said_of([*given], 'has lost all variables')}.")
                    raise
        for rank, refused in given.items():
            await _take(hub, rank, files[rank], refused, sorted(wrong))
    finally:
        hub.replacing = False
        for path in files.values():
            path.unlink(missing_ok=True)
    why = f" ({tried[-1]})" if tried else ""
    hub.notes.append(
        f"{said_of([*given], 'was restarted')}, because the process group could not be "
        f"renewed{why}. Variables were restored, except those that are named here; random "
        "generators start from new seeds."
    )


async def _give(hub: Hub, rank: int, path: Path) -> dict[str, str] | None:
    """Let a rank write its variables; return those it cannot write, None without an answer."""
    try:
        names = await hub.call(rank, ListNames(), timeout=GIVE_SECONDS)
        return await hub.call(rank, GiveNames(str(path), names), timeout=GIVE_SECONDS)
    except NbdistError:
        return None


async def _take(
    hub: Hub, rank: int, path: Path, refused: dict[str, str] | None, wrong: list[int]
) -> None:
    """Give a new process the variables of its predecessor, or else of another rank."""
    problem = "the rank did not answer any more"
    if refused is not None:
        seconds = hub.settings.form_seconds
        answers = await hub.call_all([rank], TakeNames(str(path)), timeout=seconds)
        problem = str(answers[rank]) if isinstance(answers[rank], NbdistError) else ""
    why: dict[str, str] = refused or {}
    source = min(set(hub.ranks) - set(wrong), default=None)
    if problem and source is None:
        hub.notes.append(f"Rank {rank} has lost all variables: {problem}.")
    elif problem and source is not None:
        why = await copies.copy_names(hub, source, [rank])
        hub.notes.append(
            f"Rank {rank} has lost its own variables ({problem}), and got a copy of rank "
            f"{source}'s."
        )
    hub.notes += [f"`{name}` is lost on rank {rank}: {text}." for name, text in why.items()]


def in_words(hub: Hub) -> str:
    """Say how this cluster recovers after a fault; '' without process groups of torch."""
    if hub.backend != "ddp":
        return ""
    probed = hub.host.warm.probed
    if not probed.done():
        return "How this torch recovers after a fault is still being tested."
    return told(probed.result(), hub.settings.recovery)


def drain(hub: Hub) -> list[str]:
    """Return the messages about recovered groups, and forget them."""
    notes, hub.notes = hub.notes, []
    return list(dict.fromkeys(notes))
