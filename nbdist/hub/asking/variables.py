"""Collects the ranks' variables for `%dist who`, and completions for Tab. Hub's thread.

Nothing here takes a turn: a rank that is busy answers from its agent's thread, with less.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.hub.link.agent_connections import NoAnswer, given
from nbdist.job.named_ranks import name_ranks
from nbdist.wire.inspection import Completions, Freed, Seen, State
from nbdist.wire.rank_calls import (
    CompleteCode,
    DescribeVariables,
    FindNames,
    FreeMemory,
    GlanceAtVariables,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from nbdist.hub.hub import Hub
    from nbdist.wire.rank_calls import Answer, Call

WHO_SECONDS = 4.0
"""Time limit for an idle rank; see `nbdist.rank.looking.who` for its own limits."""
GLANCE_SECONDS = 1.0
FREE_SECONDS = 30.0
"""Time limit for freeing memory: garbage collection is slow with millions of objects."""
HELD = "it may be in C code that holds the GIL"
MOST_GROUPS = 3
"""The most groups of differing ranks that are listed one by one."""


@dataclass(frozen=True)
class Variable:
    """A variable on several ranks."""

    name: str
    seen: dict[int, Seen]
    """The variable on each rank that has it."""
    differs: tuple[str, ...] = ()
    """The differences as text: `rank 2: missing`, `ranks 1-3: shape (4, 2)`, `values differ`,
    `parameters equal; buffers differ`."""
    equal: bool = False
    """Whether the values were compared and are equal on all ranks."""

    @property
    def first(self) -> Seen:
        """The variable on the first rank that has it."""
        return next(iter(self.seen.values()))


@dataclass
class Inventory:
    """The variables of several ranks, and what is missing in this list."""

    variables: list[Variable] = field(default_factory=list)
    more: int = 0
    """How many further variables there are."""
    busy: dict[int, State] = field(default_factory=dict)
    """Busy ranks, whose values were not compared."""
    silent: dict[int, str] = field(default_factory=dict)
    """Ranks without an answer, each with the reason."""
    late: tuple[str, ...] = ()
    """Names whose values were not compared, because this would have taken too long."""


async def who(
    hub: Hub, ranks: Sequence[int], patterns: Iterable[str], most: int | None
) -> Inventory:
    """Ask the ranks for their variables."""
    living = [rank for rank in ranks if hub.ranks[rank].alive]
    wanted, described = list(patterns), 1 << 30 if most is None else most
    idle = [rank for rank in living if hub.ranks[rank].state == "idle"]
    found, silent = await _ask(hub, idle, DescribeVariables(wanted, described), WHO_SECONDS)
    # The idle ranks whose main thread runs something other than our cells.
    others = [rank for rank in living if rank not in found]
    glance = GlanceAtVariables(wanted, described)
    glances, silent = await _ask(hub, others, glance, GLANCE_SECONDS)
    found |= glances
    silent |= {rank: f"rank {rank} is dead" for rank in ranks if rank not in living}
    busy = {rank: one.state for rank, one in found.items() if one.state.busy}
    names = sorted({name for one in found.values() for name in one.names})
    by_rank = {rank: {seen.name: seen for seen in one.seen} for rank, one in found.items()}
    shown = names if most is None else names[:most]
    variables = []
    for name in shown:
        seen = {rank: there[name] for rank, there in sorted(by_rank.items()) if name in there}
        variables.append(compare(name, seen, sorted(found), busy))
    late = {name for one in found.values() for name in one.late} & set(shown)
    return Inventory(variables, len(names) - len(shown), busy, silent, tuple(sorted(late)))


async def free(hub: Hub, ranks: Sequence[int]) -> tuple[dict[int, Freed], dict[int, str]]:
    """Let idle ranks free memory; return the results, and the ranks without an answer."""
    living = [rank for rank in ranks if hub.ranks[rank].alive]
    idle = [rank for rank in living if hub.ranks[rank].state == "idle"]
    busy = [rank for rank in living if rank not in idle]
    (found, silent), (others, mute) = await asyncio.gather(
        _ask(hub, idle, FreeMemory(), FREE_SECONDS),
        _ask(hub, busy, FreeMemory(), GLANCE_SECONDS),
    )
    return found | others, silent | mute | {
        rank: f"rank {rank} is dead" for rank in ranks if rank not in living
    }


async def complete(
    hub: Hub, ranks: Sequence[int], code: str, cursor: int, prefix: str | None, seconds: float
) -> Completions:
    """Return the completions at a place in a cell, from the ranks that answer in time.

    Parameters
    ----------
    hub, ranks
        The ranks to ask: all for names, the first idle one for the rest.
    code, cursor
        The cell without the line of its magic, and the cursor's place in it.
    prefix
        The beginning of the name at the cursor, None if there cannot be a name.
    seconds
        The time limit for all answers.
    """
    living = [rank for rank in ranks if hub.ranks[rank].alive]
    idle = [rank for rank in living if hub.ranks[rank].state == "idle"][:1]
    named = living if prefix is not None else []
    names, found = await asyncio.gather(
        hub.call_all(named, FindNames(prefix or ""), timeout=seconds),
        hub.call_all(idle, CompleteCode(code, cursor, within=seconds), timeout=seconds),
    )
    offered = Completions(State())
    for answer in given(found).values():
        offered = answer
    known = {text for text, _ in offered.texts}
    if prefix is None or (known and offered.back != len(prefix)):
        return offered
    more = {name for found in given(names).values() for name in found}
    texts = offered.texts + [(name, "variable") for name in sorted(more - known)]
    return Completions(State(), len(prefix), texts)


async def _ask(
    hub: Hub, ranks: Sequence[int], call: Call[Answer], seconds: float
) -> tuple[dict[int, Answer], dict[int, str]]:
    """Ask ranks; return the answers, and the reasons of ranks without an answer."""
    found: dict[int, Answer] = {}
    silent: dict[int, str] = {}
    for rank, answer in (await hub.call_all(ranks, call, timeout=seconds)).items():
        match answer:
            case NoAnswer():
                silent[rank] = f"rank {rank} does not answer ({HELD})"
            case NbdistError():
                silent[rank] = str(answer)
            case _:
                found[rank] = answer
    return found, silent


# -- where ranks differ ------------------------------------------------------------------------


def compare(
    name: str, seen: dict[int, Seen], asked: Sequence[int], busy: Collection[int] = ()
) -> Variable:
    """Compare a variable between ranks; details that busy ranks lack do not count."""
    differs = []
    missing = [rank for rank in asked if rank not in seen]
    if missing:
        differs.append(f"{name_ranks(missing)}: missing")
    for what, of in _FIELDS:
        known = {rank: one for rank, one in seen.items() if of(one) or rank not in busy}
        found = _groups(known, of)
        if len(found) > 1:
            differs += _tell(found, what)
            break  # further differences follow from this one
    else:
        digests = _groups(seen, lambda one: one.digest)
        if len(digests) > 1 and "" not in digests:
            differs += _tell(digests, "")
        buffers = _groups(seen, lambda one: one.buffers)
        if len(digests) == 1 and len(buffers) > 1:
            told = "; ".join(_tell(buffers, "")).replace("values", "buffers")
            differs.append(f"parameters equal; {told}")
        whole = len(digests) == 1 and "" not in digests and len(seen) > 1
        return Variable(name, seen, tuple(differs), whole and not differs)
    return Variable(name, seen, tuple(differs))


_FIELDS: tuple[tuple[str, Callable[[Seen], str]], ...] = (
    ("type", lambda one: one.type),
    ("shape", lambda one: one.shape),
    ("dtype", lambda one: one.dtype),
    # Each rank has its own GPU, so its number is not a difference.
    ("device", lambda one: ", ".join(part.split(":")[0] for part in one.device.split(", "))),
    ("value", lambda one: one.value),
)


def _groups(seen: dict[int, Seen], of: Callable[[Seen], str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, one in seen.items():
        found.setdefault(of(one), []).append(rank)
    return found


def _tell(groups: dict[str, list[int]], what: str) -> list[str]:
    """Name the ranks that differ from the majority; in case of doubt, from the first rank."""
    if not what and (len(groups) > MOST_GROUPS or sum(map(len, groups.values())) == 2):  # noqa: PLR2004 - of two, neither is the odd one
        return ["values differ"]
    if len(groups) > MOST_GROUPS:
        return [f"{what}s differ"]
    usual = Counter({key: len(ranks) for key, ranks in groups.items()}).most_common(1)[0][0]
    odd = [(ranks, key) for key, ranks in groups.items() if key != usual]
    return [
        f"{name_ranks(ranks)}: " + (f"{what} {key or 'none'}" if what else "other values")
        for ranks, key in odd
    ]
