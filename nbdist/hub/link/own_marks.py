"""Puts right, or names, what a new rank has of the rank whose variables it got. Hub's thread.

The other ranks tell what is meant to differ. If there is none, names do: `rank`, `process_index`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbdist.hub.link.agent_connections import given
from nbdist.job.named_ranks import name_ranks
from nbdist.rank.values.rank_marks import Place, items, numbered, value_at
from nbdist.wire.rank_calls import PutMarksRight, TellMarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbdist.hub.hub import Hub
    from nbdist.wire.inspection import Mark, Marks

SECONDS = 20.0
"""Time limit for a rank's answer: it takes milliseconds, with data sets a second."""
MOST_NAMED = 8
"""The most paths that are listed one by one."""
COMPARED = ("generator", "seed", "data", "value")
"""What can only be compared."""


async def put_right(
    hub: Hub, source: int, ranks: list[int], before: Iterable[Marks] = ()
) -> list[str]:
    """Put right what new ranks have got from rank `source`; return messages.

    Parameters
    ----------
    hub
        The cluster.
    source, ranks
        The rank whose variables were copied, and the new ranks.
    before
        What the processes that these ranks were before have told.
    """
    living = [rank.rank for rank in hub.ranks.values() if rank.alive]
    told = given(await hub.call_all(living, TellMarks(), timeout=SECONDS))
    silent = sorted({source, *ranks} - told.keys())
    if silent:
        note = (
            f"What says which rank it is was not set for {name_ranks(ranks)}, as "
            f"{name_ranks(silent)} did not answer: set `rank` in samplers there, or run the cells "
            "again that make them."
        )
        return [note]
    others = [*before, *(one for rank, one in told.items() if rank not in (source, *ranks))]
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for rank in ranks:
        if rank in told:
            right, named = _judged(told[rank], told[source], others)
            if right:
                await hub.demand([rank], PutMarksRight(right))
            groups.setdefault((tuple(right), tuple(named)), []).append(rank)
    return [line for paths, same in groups.items() for line in _lines(source, same, *paths)]


def _judged(new: Marks, giver: Marks, others: list[Marks]) -> tuple[list[str], list[str]]:
    """Return the paths to what must be set on a new rank, and to what may have to be."""
    right: list[str] = []
    named: list[str] = []
    several = numbered((path, mark.value) for path, mark in new.found.items())
    for path, mark in new.found.items():
        theirs = [(one, one.found[path]) for one in others if path in one.found]
        differ = any(each.value != mark.value for _, each in theirs)
        if giver.found.get(path) != mark or (theirs and not differ):
            continue  # the copy has made it right, or no rank is meant
        if mark.means in COMPARED:
            if differ or mark.means == "generator":
                named.append(path)
            continue
        is_place = all(each.value == _at(one, mark) for one, each in [(giver, mark), *theirs])
        if not is_place and not differ:
            continue
        if is_place and (_at(new, mark) == mark.value or (not theirs and items(path) in several)):
            continue
        (right if is_place and mark.can_be_set else named).append(path)
    named.sort(key=lambda path: new.found[path].means == "value")  # the likeliest come first
    within = tuple(named)
    return right, [path for path in named if not any(p.startswith(f"{path}.") for p in within)]


def _at(one: Marks, mark: Mark) -> str:
    place = Place(one.rank, one.local_rank, 0)
    return str(int(value_at(place, mark.means)))


def _lines(
    source: int, ranks: list[int], right: Iterable[str], named: Iterable[str]
) -> Iterator[str]:
    new = name_ranks(ranks)
    if right:
        yield f"Set for {new}, as the copy had rank {source}'s: {_listed(right)}."
    if named:
        yield (
            f"{new[0].upper()}{new[1:]} now {'has' if len(ranks) == 1 else 'have'} rank {source}'s "
            f"{_listed(named)}, which may be meant to differ between ranks: set them there, or run "
            "the cells again that make them."
        )


def _listed(paths: Iterable[str]) -> str:
    """List paths; of many items of one list only the first."""
    firsts = list({re.sub(r"\[\d+\]", "[*]", p): p for p in reversed([*paths])}.values())[::-1]
    more = len(firsts) - MOST_NAMED
    told = ", ".join(f"`{path}`" for path in firsts[:MOST_NAMED])
    return f"{told} and {more} more" if more > 0 else told
