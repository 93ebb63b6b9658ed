"""What a rank reports about its process groups and the collective that it waits in."""

from __future__ import annotations

import msgspec


class GroupInfo(msgspec.Struct, frozen=True):
    """One process group of a rank, enough for a newcomer to build the same one."""

    name: str
    ranks: list[int]
    backend: str
    timeout: float
    world: bool = False
    description: str = "undefined"
    bound: bool = False
    """Whether it was made with this rank's GPU, so that NCCL was connected at once."""


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """The collective a rank is inside right now.

    `op` is named as torch names it (``all_reduce``, ``new_group``, ``backward``), `group` is the
    process group's name (empty when unknown), `seq` its count of collectives, and `since` the
    seconds the rank has been inside. `limit` is when we have to end it; 0 where torch does.
    """

    op: str
    group: str
    seq: int | None
    since: float
    limit: float = 0.0


class Roster(msgspec.Struct, frozen=True):
    """What a rank brings to the forming of a generation."""

    formed: bool
    group_count: int
    groups: list[GroupInfo]
    listening: list[tuple[str, int]] = []
    """Where its groups listen."""


NO_WAY = ", to which no variable leads"
"""Ends the name of what is compared and cannot be named."""


class Digest(msgspec.Struct, frozen=True):
    """What a rank tells of a model, an optimizer or the like, for others to compare."""

    outline: str
    """What it is made of; '' where that cannot be told yet. With another one on another rank it
    was never the same."""
    content: str
    why: str = ""
    """Why it cannot be compared."""
    sharded: bool = False
    """Whether each rank has a part of it, which no other rank can give."""
    thing: int = 0
    """Its number on that rank: two ways may lead to one thing."""
