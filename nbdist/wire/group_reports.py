"""What a rank reports about its process groups and the collective that it waits in."""

from __future__ import annotations

import msgspec

BACKWARD = "/torch/autograd/graph.py"
"""The end of the name of the file whose function runs every backward pass."""


class GroupInfo(msgspec.Struct, frozen=True):
    """One process group of a rank: all that a new process needs to make the same group."""

    name: str
    ranks: list[int]
    backend: str
    timeout: float
    world: bool = False
    description: str = "undefined"
    bound: bool = False
    """Whether it was made with this rank's GPU as device id, so that NCCL connected at once."""


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """The collective a rank is inside right now.

    `op` is named as torch names it (``all_reduce``, ``new_group``, ``backward``), `group` is the
    process group's name (empty when unknown), `seq` its count of collectives, and `since` the
    seconds the rank has been inside. After `limit` seconds nbdist ends it; 0 if torch does that.
    """

    op: str
    group: str
    seq: int | None
    since: float
    limit: float = 0.0


class Roster(msgspec.Struct, frozen=True):
    """What a rank reports about itself before the groups of a generation are formed."""

    formed: bool
    group_count: int
    groups: list[GroupInfo]
    listening: list[tuple[str, int]] = []
    """The addresses on which its groups listen."""
    models: dict[str, str] = {}
    """How its models on these groups stand, by names that are equal on all ranks: a text that is
    equal on ranks whose models fit each other; '' if a pass was left unfinished."""


class Standing(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the process groups of a rank stand after a cell that failed.

    If all ranks that share a group tell the same, and nothing is `broken`, the cell broke nothing.
    """

    broken: bool
    """Whether something was cut or left unfinished on this rank, or it cannot be known."""
    count: int = 0
    """How many groups the cell has made."""
    used: dict[str, int] = {}
    """For each group, how many operations the cell has begun in it; -1 if it has destroyed it."""
    last: dict[str, list[str]] = {}
    """For each group that was used, its last collectives."""
    steps: list[int] = []
    """The optimizer steps of the cell: begun, ended, and begun after the rank was freed."""
    changed: int = 0
    """How often torch has counted changes of what is trained since the last comparison."""


NO_WAY = ", to which no variable refers"
"""The end of the description of a compared object that no variable refers to."""


class Digest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A digest of one rank's model, optimizer or the like, to compare it with other ranks."""

    outline: str
    """A digest of the structure; '' if not known yet. If it differs between ranks, they never had
    the same object."""
    content: str
    why: str = ""
    """Why the object cannot be compared."""
    sharded: bool = False
    """Whether each rank has its own part of the object, which no other rank can give."""
    thing: int = 0
    """The number of the object on that rank: two paths may lead to one object."""
    together: bool = False
    """Whether ranks are known to train it together, so that it must be equal on them."""
    steps: list[int] = []
    """Optimizer steps with it in the last cell: begun, ended, and begun after the rank was freed
    from a collective. Empty without any."""
    changed: int = 0
    """What torch or the object itself counts of its changes since the last comparison; -1 if
    nothing does, or on a rank that has not run a cell yet: it has what another rank has changed."""
    before: str = ""
    """A sample of its numbers before the last cell's first step; '' if unknown."""
    sampled: bool = False
    """Whether that rank took a step in the last cell, so that `before` differs from its values."""


class Outline(msgspec.Struct, frozen=True):
    """What must be the same on all ranks so that an object can be copied between them."""

    parts: dict[str, str]
    """Each part in words, by its name: dtype and shape of a tensor, else the type. The object
    itself has the name ''."""
    why: str = ""
    """Why the object cannot be copied."""
    ranks: list[int] = []
    """The ranks that share the object; empty if all do."""
