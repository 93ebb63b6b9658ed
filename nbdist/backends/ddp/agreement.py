"""Ranks agree which process groups the next generation keeps, by exchange through the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nbdist.wire.group_reports import GroupInfo, Roster

if TYPE_CHECKING:
    from nbdist.backends.groups.stores import Store


def exchange(store: Store, rank: int, world_size: int, mine: Roster) -> list[Roster]:
    """Exchange rosters among all ranks through the store; every rank must call it."""
    store.set(f"roster/{rank}", msgspec.json.encode(mine).decode())
    texts = store.multi_get([f"roster/{other}" for other in range(world_size)])
    return [msgspec.json.decode(text, type=Roster) for text in texts]


def kept(rosters: list[Roster]) -> list[GroupInfo]:
    """Return the groups to keep, WORLD first, in the order in which all ranks build them.

    A group is kept if every member has it. Members without any group do not count: they are new
    processes, or the user destroyed their groups. Without a WORLD on which all ranks agree, no
    group is kept.
    """
    known = {group.name: group for roster in rosters for group in roster.groups}
    whole = [
        group for group in known.values() if all(_fits(rosters[r], group) for r in group.ranks)
    ]
    worlds = [group for group in whole if group.world and len(group.ranks) == len(rosters)]
    if len(worlds) != 1:
        return []
    return worlds + sorted((group for group in whole if not group.world), key=_order)


MADE = "made"
"""Behind the name of a group in `Roster.models`: how many models were ever made on it."""


def part(rosters: list[Roster], name: str, ranks: list[int]) -> bool:
    """Return whether the models of this name do not stand alike, or not at rest, on these ranks.

    If a rank has made another number of models, a name may mean another model there.
    """
    group, _, _ = name.partition(" ")
    made = {rosters[rank].models.get(f"{group} {MADE}", "") for rank in ranks}
    stands = {rosters[rank].models.get(name, "") for rank in ranks}
    return len(stands) > 1 or "" in stands or len(made) > 1


def made(rosters: list[Roster]) -> dict[str, int]:
    """Return how many models were made on each group, by the rank that made most."""
    most: dict[str, int] = {}
    for roster in rosters:
        for name, count in roster.models.items():
            group, _, what = name.partition(" ")
            if what == MADE:
                most[group] = max(int(count), most.get(group, 0))
    return most


def _fits(roster: Roster, group: GroupInfo) -> bool:
    return not roster.formed or any(
        (own.name, own.ranks, own.backend, own.world)
        == (group.name, group.ranks, group.backend, group.world)
        for own in roster.groups
    )


def _order(group: GroupInfo) -> tuple[int, str]:
    return len(group.name), group.name
