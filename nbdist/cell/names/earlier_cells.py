"""Records what cells for the ranks have defined and made, and what that reads of the notebook.

A later cell may use only what an earlier one has made. Then the changes of what it was made from,
and of what its code reads, have to follow. Kernel's main thread.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.cell.names.made_from import made_from
from nbdist.cell.names.used_names import bound, mentioned, read_later, used
from nbdist.rank.values.held import Held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType

    from nbdist.cell.names.sent_versions import Known


HOLD_NOTHING = (ModuleType, FunctionType, type)
"""Types to which cells rarely add what the notebook may change."""


class EarlierCells:
    """The cells that ranks have run."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._ran: dict[str, dict[str, None]] = {}
        """For each name that a cell on the ranks has bound, the names that its functions may
        read."""
        self._made: dict[str, set[str]] = {}
        """For each name that cells on the ranks have bound or changed, the notebook's names that
        were read for it."""
        self._read_behind: dict[str, set[str]] = {}
        """Likewise, the names that the code behind what was made may read."""
        self._left_out: dict[str, Held] = {}
        """The notebook's last values that could not follow to what cells have made."""

    def left_out(self, name: str, value: object) -> bool:
        """Record a changed value that cannot be sent; return whether it is news."""
        before = self._left_out.get(name)
        self._left_out[name] = Held(value)
        return before is None or not before.holds(value)

    def defined(self, name: str, reads: dict[str, None]) -> None:
        """Record a name that became the ranks' own, and what its code reads."""
        self._ran[name] = reads

    def read_by(self, source: str, code: CodeType) -> dict[str, None]:
        """Return the names that the ranks' own functions in a cell for them may read."""
        before: dict[str, None] = {}
        theirs = [name for name in mentioned(code) if name in self._ran] if self._ran else []
        if theirs:
            found = used(source, code)
            own = {*bound(code)} - found.surely.keys() - found.maybe.keys()
            for name in theirs:
                if name not in own:  # else the cell defines it before it uses it
                    before |= self._ran[name]
        return before

    def ran(self, code: CodeType, before: Mapping[str, None]) -> None:
        """Record a cell for the ranks, and the names that their own functions in it may read."""
        after = {**before, **dict.fromkeys(read_later(code))}
        for name in bound(code) if after or self._ran else ():
            if after:
                self._ran[name] = after
            else:
                self._ran.pop(name, None)

    def read_there(self, names: Iterable[str]) -> dict[str, None]:
        """Return the names that the ranks' own functions under these names may read."""
        return {each: None for name in names for each in self._ran.get(name, ())}

    def changed_behind(self, names: Iterable[str], space: Mapping[str, Any]) -> list[str]:
        """Return those of these names, and of what their code reads, that the notebook has changed.

        Code of the ranks reads them, so that others need not be sent.
        """
        found, todo = dict[str, None](), [*names]
        while todo:
            name = todo.pop()
            if name not in found:
                found[name] = None
                todo += [*self._known.reads(name), *self._ran.get(name, ())]
        return [name for name in found if name in space and self._known.changed(name, space[name])]

    def made_before(self, code: CodeType) -> set[str]:
        """Return the notebook's names from which earlier cells made what this cell mentions."""
        if not self._made:
            return set()
        return {each for name in mentioned(code) for each in self._made.get(name, ())}

    def read_by_made(self, code: CodeType, space: Mapping[str, Any]) -> list[str]:
        """Return the changed names that code behind what cells have made and this cell uses reads.

        It may be a class of which a cell has made an object: its methods read the present values.
        """
        if not self._read_behind:
            return []
        reads = {each for name in mentioned(code) for each in self._read_behind.get(name, ())}
        return self.changed_behind(sorted(reads), space)

    def made(self, source: str, code: CodeType, space: Mapping[str, Any]) -> None:
        """Record what a cell for the ranks makes from the notebook's names, and from its own."""
        if not any(name in self._known or name in self._made for name in mentioned(code)):
            return
        for made, read in made_from(source):
            found = {each for name in read for each in self._behind(name)}
            if found:
                for name in made:
                    if not isinstance(space.get(name), HOLD_NOTHING):  # as in `torch.save(net)`
                        self._made.setdefault(name, set()).update(found)
                        reads = {one for each in found for one in self._known.by_code(each)}
                        self._read_behind.setdefault(name, set()).update(reads)

    def _behind(self, name: str) -> set[str]:
        """Return the notebook's names that the value of a name may hold, or that its code reads."""
        found, todo = set[str](), [name, *self._ran.get(name, ())]
        while todo:
            each = todo.pop()
            found |= self._made.get(each, set())
            if each in self._known and each not in found:
                found.add(each)
                todo += self._known.reads(each)
        return found
