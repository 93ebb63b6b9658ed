"""Records what cells for the ranks have defined and made, and what that reads of the notebook.

A later cell may use only what an earlier one has made. Then the changes of what it was made from,
and of what its code reads, have to follow. Kernel's main thread.
"""

from __future__ import annotations

import builtins
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.cell.names.made_from import Statement, statements
from nbdist.cell.names.used_names import bound, mentioned, read_later, used
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.values.held import Held
from nbdist.rank.values.kinds import GROWING, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType

    from nbdist.cell.names.sent_versions import Known


HOLD_NOTHING = (ModuleType, FunctionType, BuiltinFunctionType, *PLAIN[:-1])
"""Types to which statements rarely add what the notebook may change."""


class EarlierCells:
    """The cells that ranks have run."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._ran: dict[str, dict[str, None]] = {}
        """For each name that a cell on the ranks has bound, the names that its functions may
        read."""
        self._statements: dict[str, set[Statement]] = {}
        """For each name that may hold what such cells have made: the statements of it."""
        self._code = set(OURS)
        """The names of modules and functions of the ranks."""
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

    def made(self, source: str, space: Mapping[str, Any]) -> None:
        """Record what each statement of a cell for the ranks brings together."""
        for each in statements(source):
            self._code -= each.binds
            if each.is_code:
                self._code |= each.binds
            statement = self._with_stores(each, space)
            for name in statement.names if len(statement.names) > 1 else ():
                if name in statement.binds or self._may_hold(name, space):
                    self._statements.setdefault(name, set()).add(statement)

    def _with_stores(self, statement: Statement, space: Mapping[str, Any]) -> Statement:
        """Return a statement with what its functions read, where they may put their arguments."""
        if statement.is_code:
            return statement
        names = (name for name in statement.names if isinstance(space.get(name), FunctionType))
        read = {each for name in names for each in self._known.reads(name)}
        return statement._replace(names=statement.names | {n for n in read if n in space})

    def _may_hold(self, name: str, space: Mapping[str, Any]) -> bool:
        """Return whether a statement may put something into the value of a name that it reads."""
        if name in self._code or name in self._statements:
            return name not in self._code
        value = space.get(name, vars(builtins).get(name))
        if isinstance(value, type):  # as in `Net.made.append(net)`
            own = (each for each in value.__mro__ if each.__module__ == "__main__")
            return any(type(part) in GROWING for each in own for part in vars(each).values())
        return not isinstance(value, HOLD_NOTHING)

    def behind(self, code: CodeType) -> tuple[set[str], set[str]]:
        """Return what may be behind the names that a cell mentions, and what code there reads.

        Objects that cells have made from the notebook's values hold these. Code may be a class of
        which a cell has made an object: its methods read the present values.
        """
        found, read, seen = set[str](), set[str](), set[Statement]()
        todo = [*mentioned(code)] if self._statements else []
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            read |= self._known.by_code(name)
            todo += [*self._known.reads(name), *self._ran.get(name, ())]
            for statement in self._statements.get(name, set()) - seen:
                seen.add(statement)
                read |= statement.later
                todo += statement.names
        return found, read
