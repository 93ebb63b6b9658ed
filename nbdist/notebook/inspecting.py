"""What a `Cluster` can tell about its ranks without disturbing them. Any thread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbdist.hub.asking import stacks as stacks_of_ranks
from nbdist.hub.asking import variables
from nbdist.hub.link.agent_connections import given
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.rank.looking.vitals import STACKS_SIGNAL
from nbdist.wire.inspection import Completions, State
from nbdist.wire.rank_calls import FindVersions, ListNames, TellCondition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbdist.hub.hub import Hub
    from nbdist.wire.inspection import Condition
    from nbdist.wire.rank_calls import Answer, Call

ASK_SECONDS = 3.0
"""How long to wait for a rank's answer; later ones are left out."""
COMPLETE_SECONDS = 0.3
NAME = re.compile(r"(?<![.'\"/%!?\\])\b[^\W\d]\w*$|(?<![.'\"/%!?\\\w])$")
"""Matches an incomplete name before the cursor."""


def vitals(hub: Hub) -> dict[int, Condition]:
    """Ask every living rank what it is doing; a rank that does not answer is left out."""
    return _from_living(hub, TellCondition())


def stacks(hub: Hub, ranks: Iterable[int]) -> dict[int, str]:
    """Return the Python stacks of living ranks, also of a rank whose main thread is stuck."""

    def dump(rank: int) -> None:
        hub.host.signal(hub.ranks[rank].pid, STACKS_SIGNAL)

    wanted = set(ranks)
    chosen = [rank for rank in living_ranks(hub) if rank in wanted]
    return hub_loop().wait(stacks_of_ranks.of(hub.line, hub.host.folder, chosen, dump))


def names(hub: Hub) -> list[str]:
    """Return the names that cells have bound on the ranks."""
    lists = _from_living(hub, ListNames()).values()
    return sorted({name for found in lists for name in found})


def known_there(hub: Hub, names: list[str]) -> set[str]:
    """Return which of these names some rank has, also one that is busy."""
    return {name for found in _from_living(hub, FindVersions(names)).values() for name in found}


def _from_living(hub: Hub, call: Call[Answer]) -> dict[int, Answer]:
    return given(hub_loop().wait(hub.call_all(living_ranks(hub), call, timeout=ASK_SECONDS)))


def complete(hub: Hub, ranks: Sequence[int], code: str, cursor: int) -> Completions:
    """Return the ranks' completions at a position in a cell, within a third of a second."""
    line = code[:cursor].rpartition("\n")[2]
    found = NAME.search(line)
    prefix = found[0] if found else None
    question = variables.complete(hub, ranks, code, cursor, prefix, COMPLETE_SECONDS)
    try:
        return hub_loop().wait(question, 2 * COMPLETE_SECONDS)
    except TimeoutError:  # the hub is busy itself
        return Completions(State())


def living_ranks(hub: Hub) -> list[int]:
    """Return the numbers of the ranks that are alive, in their order."""
    return [rank for rank in sorted(hub.ranks) if hub.ranks[rank].alive]
