"""Says where the ranks keep a value although the notebook's has changed. Kernel's main thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.cell.names.bound_on_ranks import note_on, same
from nbdist.cell.names.used_names import mentioned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nbdist.cell.names.references import Ask
    from nbdist.cell.names.sent_versions import Change, Known
    from nbdist.cell.names.wanted_names import Wanted
    from nbdist.wire.inspection import Look

    LookAt = Callable[[list[str]], list[Mapping[str, Look]]]
    """Returns for each rank that answers at once what it has under these names."""

CHANGED: dict[Change, str] = {
    "bound": "`{0}` got a new value in the notebook, but cells have also assigned `{0}` on the "
    "ranks. The ranks keep their value; `--bring {0}` brings the notebook's value.",
    "edited": "`{0}` was changed in the notebook, but cells have also changed `{0}` on the ranks. "
    "The ranks keep their value; `--bring {0}` brings the notebook's value.",
}
DRIFTED = (
    "`{0}` was changed in place in the notebook after it was brought; the ranks keep their "
    "value. `--bring {0}` replaces it by the notebook's present value. Objects that cells have "
    "made from `{0}` (an optimizer, a DDP model) must be brought, too, or re-created."
)
DELETED = (
    "`{0}` was deleted in the notebook; the ranks keep the value that was brought. `del {0}` in "
    "a cell deletes it on the ranks, too."
)
LEFT_OUT = (
    "`{0}` was changed in the notebook, but cannot be brought to the ranks: {1}. What cells there "
    "have made may still use the `{0}` that was brought before."
)
STAYS = (
    "`{0}` was changed in place in the notebook. What cells on the ranks have made from `{0}` may "
    "still have it as it was, as it cannot follow: bring `{0}` and make that again."
)


class KeptValues:
    """What one attempt at packing has found, as messages for the user."""

    def __init__(self, wanted: Wanted, known: Known) -> None:
        self._wanted, self._known = wanted, known
        self.notes: list[str] = []
        self._drifted: set[str] = set()
        self._both: dict[str, str] = {}
        """Names that have changed at both ends, each with a message, unless it has become equal."""

    def found(self, name: str, change: Change) -> None:
        """Take a name that has changed in the notebook, and of which the ranks keep their value."""
        if change == "drifted":
            self.notes.append(DRIFTED.format(name))
            self._drifted.add(name)
        elif change in CHANGED:
            self._both[name] = CHANGED[change].format(name)

    def left_out(self, name: str, why: str) -> None:
        """Take a name that has changed in the notebook, and whose new value cannot travel."""
        self.notes.append(LEFT_OUT.format(name, why))

    def stays(self, name: str) -> None:
        """Take a name that has changed in the notebook, and that objects there hold as it was."""
        if name not in self._drifted:  # else it is told
            self.notes.append(STAYS.format(name))

    def look_at_deleted(self, ask: Ask, used: Iterable[str]) -> None:
        """Add messages about names in `used` that were deleted in the notebook."""
        gone = self._known.forget(self._wanted.space, used)
        if gone:
            answers = ask(gone)
            there = [name for name in gone if any(answer.get(name) for answer in answers)]
            self.notes += [DELETED.format(name) for name in there]

    def look_at_newer(self, look: LookAt) -> None:
        """Add messages about what the notebook has bound or changed after cells did so there."""
        wanted, there, space = self._wanted, self._known.there, self._wanted.space
        free = [n for n in self._reads() if wanted.has(n) and n not in wanted.forced]
        for name in filter(self._known.moved_with_others, self._drifted):
            self.notes.remove(DRIFTED.format(name))
        for name in self._drifted.intersection(free):
            there.settle(name, space)  # the change is told already
        newer = sorted(name for name in free if there.is_newer(name, space[name]))
        looks = look([*newer, *self._both]) if newer or self._both else []
        for name, message in self._both.items():
            there_too = [each[name] for each in looks if name in each]
            if not there_too or not all(same(space[name], each) for each in there_too):
                self.notes.append(message)
        for name in newer if looks else ():
            found = [each[name] for each in looks if name in each and not each[name].version]
            if any(each.busy and not each.value for each in found):
                continue  # a later cell says so
            if not all(same(space[name], each) for each in found):
                self.notes.append(note_on(name, space[name], found))
            there.settle(name, space)

    def _reads(self) -> set[str]:
        """Return the names that the cell reads, also through the code of others."""
        wanted, known = self._wanted, self._known
        reads, todo = set[str](), [*wanted.read]
        if wanted.python is not None and wanted.automatic:
            todo += [n for name in mentioned(wanted.python) for n in known.there.reads(name)]
        while todo:
            name = todo.pop()
            if name not in reads:
                reads.add(name)
                todo += [*known.reads(name), *known.there.reads(name)]
        return reads
