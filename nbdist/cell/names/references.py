"""Decides to which of the ranks' objects packed values refer, instead of bringing copies.

What is brought is what the notebook has: values refer to an object only if both ends have it in the
same state. There are two exceptions. A class is the same for all its instances. And optimizers
update the ranks' own model, as training a copy of it would train nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nbdist.rank.looking.likeness import alike
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.parts_inside import is_model
from nbdist.rank.values.shared_parts import Parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nbdist.cell.names.sent_versions import Known
    from nbdist.wire.inspection import Edited

COPIED = (
    "`{0}` was brought with the notebook's `{1}`, but cells have changed `{1}` on the ranks, so "
    "the two are separate there. A `{0}` that a cell on the ranks makes uses their `{1}`."
)
TRAINS_COPY = (
    "`{0}` was brought with the notebook's `{1}`, but the ranks have another `{1}`, which an "
    "optimizer in `{0}` does not train. Make `{0}` in a cell on the ranks, or bring both: "
    "`--bring {1},{0}`."
)


class Ask(Protocol):
    """Returns for each rank its versions of names; see `rank_names.Names.holds`."""

    def __call__(
        self,
        names: list[str],
        edited: Mapping[str, Edited] | None = None,
        *,
        compared: bool = False,
    ) -> list[Mapping[str, str]]:
        """Ask the ranks."""


class References:
    """What the ranks have of the notebook's objects, for the values in one parcel."""

    def __init__(self, space: Mapping[str, Any], known: Known, ask: Ask) -> None:
        self._space, self._known, self._ask = space, known, ask
        self.parts = Parts(lambda name: known.stale(name, space[name]))
        self._versions: dict[str, str] = {}
        """The names to whose objects values may refer."""
        self._stale: dict[str, bool] = {}
        """Whether the notebook has changed an object since; of the names looked at so far."""
        self._touched: set[str] = set()
        """Names whose objects cells have changed on the ranks."""
        self._theirs: set[str] = set()
        """Of the names to whose objects values may refer, those that cells have bound there."""
        self._steered: set[str] = set()
        self._told: dict[tuple[str, str], str] = {}

    def look(self, forced: Iterable[str]) -> None:
        """Find the objects that all ranks have."""
        kept = self._known.kept(self._space)
        forced = set(forced)
        answers = self._ask(list(kept))
        others = []
        for name, token in kept.items():
            found = [each.get(name) for each in answers]
            theirs = all(version == "" for version in found)
            if "" in found and is_a(self._space[name], "torch.nn", "Module"):
                others.append(name)
            elif name not in forced and (theirs or all(version == token for version in found)):
                self._versions[name] = token
                if not isinstance(self._space[name], tuple):
                    self.parts.add(name, self._space[name])
                if theirs:
                    self._theirs.add(name)
            elif self._versions.pop(name, None):  # it is brought anew, as has been found since
                self.parts.copied.add(name)
                self.parts.copied_inside.add(name)
        self._add_inside()
        for name in others:  # last: what has a name on the ranks, too, is there
            self.parts.add(name, self._space[name])
            self.parts.copied.add(name)

    def _add_inside(self) -> None:
        """Add what is inside of the objects that all ranks have."""
        for name in self._versions:
            if self._known.compares_all(name):
                self.parts.add_inside(name, self._space[name])
            elif is_model(self._space[name]):
                self.parts.add_attributes(name, self._space[name])

    def judge(self, user: str) -> tuple[list[str], bool]:
        """Decide about the objects that `user` refers to, after a trial.

        Returns
        -------
        names : list of str
            Names that the notebook has changed, so that the ranks need their new state.
        final : bool
            Whether the trial was with the references that the parcel will have.
        """
        parts = self.parts
        before = set(parts.copied), set(parts.copied_inside)
        self._steered |= parts.steered.keys() & self._versions
        parts.copied -= self._steered
        for name in parts.steered.keys() - self._versions:
            self._told[user, name] = TRAINS_COPY
        names = [name for name in {**parts.met, **parts.steered} if name in self._versions]
        self._compare([name for name in names if name not in self._stale])
        changed = []
        for name in names:
            if name in self._theirs:
                if name in self._touched:
                    parts.copied.add(name)
            elif name in self._steered or isinstance(self._space[name], type):
                changed += [name] if self._stale[name] else []
            elif name in self._touched:
                self._told[user, name] = COPIED
                parts.copied.add(name)
            elif self._stale[name] and self._known.follows(name):
                changed.append(name)
            elif self._stale[name]:
                parts.copied.add(name)
            elif self._known.changed(name, self._space[name]):  # only its gradients
                changed.append(name)
        changed += self._judge_inside(user)
        return changed, (parts.copied, parts.copied_inside) == before

    def _judge_inside(self, user: str) -> list[str]:
        """Let nothing refer to what is inside of values that are not the same at both ends.

        Returns the names of those that are the same but for the gradients inside.
        """
        parts = self.parts
        names = {**parts.met_inside, **parts.steered_inside}
        self._compare([name for name in names if name not in self._stale])
        for name in names:
            if self._stale[name] or name in self._touched:
                parts.copied_inside.add(name)
                if name in parts.steered_inside:  # a scheduler, which would steer a copy
                    self._told[user, name] = COPIED
        met = (name for name in names if name not in parts.copied_inside)
        return [name for name in met if self._known.changed(name, self._space[name])]

    def _compare(self, names: list[str]) -> None:
        answers = self._ask(names, compared=True) if names else []
        for name in names:
            value, found = self._space[name], {each.get(name) for each in answers}
            self._stale[name] = self._known.stale(name, value)
            if found == {self._versions[name]}:
                continue
            # Cells have changed it on the ranks; the notebook may have got it back from there.
            if len(found) == 1 and found == {alike(value) or None}:
                self._stale[name] = False
            else:
                self._touched.add(name)

    def notes(self, packed: Collection[str]) -> list[str]:
        """Return messages about what is separate on the ranks but not in the notebook."""
        copied = (self.parts.copied | self.parts.copied_inside).difference(packed)
        return [text.format(*key) for key, text in self._told.items() if key[1] in copied]
