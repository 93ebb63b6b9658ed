"""One version of a name of the notebook that was sent to the ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nbdist.rank.values.held import Contents, Held

Moved = Literal["", "graded", "changed"]
"""What the notebook has changed in an object: the gradients alone, or anything else."""


@dataclass
class Version:
    """What was sent under a name."""

    id: str
    """An id that stays the same while the name is bound to the same object."""
    held: Held
    contents: Contents | None
    edits: int = 0
    drifted: bool = False
    moved: Moved = ""
    """What the notebook was seen to have changed, after which the object may have got back."""
    differing: list[Held] = field(default_factory=list)
    """What in the value has changed without being sent with it."""
    reads: dict[str, None] = field(default_factory=dict)
    """Names that the value needs, as its code reads them or it has their classes: found by
    pickling it."""
    by_code: set[str] = field(default_factory=set)
    """Of these, the names that code reads."""
    binds: set[str] = field(default_factory=set)
    """Names that its functions declare `global` and bind."""
    mentions: dict[str, None] = field(default_factory=dict)
    """Names that annotations in the value mention."""
    parts: dict[str, str] = field(default_factory=dict)
    """The names of objects inside of the value, with the ids of these objects: what their code
    reads is found when they are sent themselves."""
    holders: set[str] = field(default_factory=set)
    """The names whose values have this very object on the ranks, too."""
    inside: list[tuple[Held, str]] = field(default_factory=list)
    """What plain data holds, each with its path."""
    inside_before: list[tuple[Held, str]] = field(default_factory=list)
    """The same, of the version before."""

    @property
    def token(self) -> str:
        """The name of this version, in questions to ranks."""
        return f"{self.id}:{self.edits}"

    def moves(self, value: object) -> Moved:
        """Return what the notebook has changed since the value was sent or last told of."""
        if self.contents is None:
            return ""
        if self.moved == "changed" or not self.contents.same(value):
            return "changed"
        graded = not self.drifted and self.contents.gradients() == "other"
        return "graded" if graded else self.moved

    def has(self, one: object) -> bool:
        """Whether this is the value of the name, or inside of it."""
        return self.held.holds(one) or any(held.holds(one) for held, _ in self.inside)
