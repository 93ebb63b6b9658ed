"""Records which versions of the notebook's names were sent, and which names their code reads."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from nbdist.cell.names.bound_on_ranks import BoundOnRanks, same
from nbdist.cell.names.earlier_cells import EarlierCells
from nbdist.cell.names.one_version import Version
from nbdist.cell.names.used_names import bound_anywhere
from nbdist.rank.values.contents import contents
from nbdist.rank.values.held import Contents, Held
from nbdist.rank.values.kinds import is_open
from nbdist.rank.values.own_modules import Read, with_imported
from nbdist.rank.values.parts_inside import inside
from nbdist.rank.values.small_contents import Complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import CodeType

    from nbdist.wire.inspection import Look


FIXED = (int, float, complex, str, bytes, type(None), tuple, frozenset, ModuleType)
"""Types whose objects are equivalent to their copies."""
ABSENT = object()
MOST_EARLIER = 20
"""The most classes that are watched after their names have got other values, the latest."""

Change = Literal["", "bound", "edited", "drifted", "graded"]
"""The change of a name since the last look. "bound": bound to another object. "edited": the object
was changed in place, and can be sent again. "drifted": changed in place, but not sent again: the
new value (a model, a tensor) would undo the changes that cells have made on the ranks. "graded": a
model, or its optimizer, has other gradients, and is else the same."""


_REPLACED = Held(object())
"""Holds an object to which no name is bound."""


class Known:
    """The names that were sent to the ranks. Kernel's main thread."""

    def __init__(self) -> None:
        self._versions: dict[str, Version] = {}
        self._modules: dict[str, tuple[Read, int]] = {}
        """The modules that ranks have imported, and how often the notebook has reloaded them."""
        self._deleted: set[str] = set()
        """Names that were deleted in the notebook, without a message so far."""
        self._earlier: WeakKeyDictionary[type, Contents] = WeakKeyDictionary()
        """The sent classes whose names have got other values since: objects may still have them."""
        self._before: dict[str, Version | None] = {}
        """What was recorded of names before this attempt at packing; None for a new name."""
        self._told_deleted: set[str] = set()
        """The deleted names of which this attempt says it."""
        self.there = BoundOnRanks()
        self.cells = EarlierCells(self)
        series = secrets.token_hex(3)
        self._objects = (f"{series}.{n}" for n in itertools.count(1))

    def keep(self) -> None:
        """Keep what an attempt at packing has recorded."""
        self._before.clear()
        self._told_deleted.clear()

    def take_back(self) -> None:
        """Undo what an attempt has recorded, so that the next one finds the same changes."""
        for name, known in self._before.items():
            if known is None:
                self._versions.pop(name, None)
            else:
                self._versions[name] = known
        self._deleted |= self._told_deleted
        self.keep()

    def __contains__(self, name: str) -> bool:
        return name in self._versions

    def version(self, name: str, value: object) -> tuple[str, Change]:
        """Return the version of `name` with this value, and how it changed in the notebook."""
        known = self._versions.get(name)
        self._before.setdefault(name, None if known is None else replace(known))
        if known is None or not known.held.holds(value):
            self._keep_class(known)
            made = self._versions[name] = Version(next(self._objects), Held(value), contents(value))
            made.inside = self._inside(made, value)
            return made.token, "" if known is None else "bound"
        how = known.moves(value)
        if how != "changed":
            return known.token, how
        if known.drifted or not self.follows(name):
            moved = [] if known.contents is None else known.contents.differing(value)
            told = known.differing
            new = [Held(one) for one in moved if not any(each.holds(one) for each in told)]
            known.differing = [*told, *new]
            known.drifted, known.moved, known.contents = True, "", contents(value)
            return known.token, "drifted"
        self.renew(name, value)
        return known.token, "edited"

    def renew(self, name: str, value: object) -> str:
        """Make and return a new version of the same object in its present state.

        What its code was found to read stands until it is packed or read anew.
        """
        known = self._versions[name]
        known.edits, known.drifted, known.moved = known.edits + 1, False, ""
        known.contents = contents(value)
        known.inside_before, known.inside = known.inside, self._inside(known, value)
        known.differing = []
        return known.token

    @staticmethod
    def _inside(known: Version, value: object) -> list[tuple[Held, str]]:
        """Return the objects inside of plain data that ranks can find again by their paths."""
        found = isinstance(known.contents, Complete) and known.contents.plain
        return [(Held(part), path) for part, path in inside(value)] if found else []

    def inside_before(self, name: str, versions: set[str | None]) -> list[tuple[object, str]]:
        """Return what an edited object held in the version before, if all ranks have that."""
        known = self._versions[name]
        if versions != {f"{known.id}:{known.edits - 1}"}:
            return []
        found = [(held.value(), path) for held, path in known.inside_before]
        return [(part, path) for part, path in found if part is not None]

    def sent_gradients(self, name: str, value: object) -> None:
        """Record that the ranks that have not trained this model get its present gradients."""
        known = self._versions[name]
        known.moved, known.contents = "", contents(value)

    def returned(self, name: str, value: object) -> None:
        """Record that a name's value came from the ranks, so that it need not be sent to them."""
        known = self._versions.get(name)
        made = self._versions[name] = Version(
            next(self._objects) if known is None else known.id,
            Held(value),
            contents(value),
            0 if known is None else known.edits,
            reads={} if known is None else known.reads,
            mentions={} if known is None else known.mentions,
            by_code=set() if known is None else known.by_code,
            binds=set() if known is None else known.binds,
            parts={} if known is None else known.parts,
        )
        made.inside = self._inside(made, value)
        self.there.returned(name, {name: value})

    def let_go(self, name: str) -> None:
        """Forget a name that ranks were given with a value that the notebook does not bind to it.

        It is the ranks' own from now on: the notebook cannot delete it. What its code reads of the
        notebook is still followed, as for functions that cells have defined on the ranks.
        """
        self.cells.defined(name, self.reads(name))
        del self._versions[name]

    def changed(self, name: str, value: object) -> bool:
        """Return whether ranks may have another version of `name` than this value."""
        known = self._versions.get(name)
        return known is None or not known.held.holds(value) or bool(known.moves(value))

    def unchanged(self, name: str, value: object) -> str | None:
        """Return the version sent last if the name still has it; '' if it has another object.

        None if the notebook has changed the object since.
        """
        known = self._versions.get(name)
        if known is None or not known.held.holds(value):
            return ""
        return None if self.changed(name, value) else known.token

    def left_alone(self, name: str, value: object) -> bool:
        """Whether the notebook has code or plain data as it was when cells there last had it."""
        if not isinstance(value, (type, FunctionType)) and not is_open(type(value)):
            return False
        if name in self.there:
            return self.there.is_older(name, value)
        return name in self._versions and not self.changed(name, value)

    def look_at(self, name: str, value: object, looks: Iterable[Look]) -> None:
        """Record that the notebook has changed what cells on some ranks have changed, too.

        Taking its change back makes the ends no more equal.
        """
        versions = {look.version for look in looks if look.changed}
        if not versions:
            return
        self.there.look_at(name, value)
        known = self._versions.get(name)
        if known is not None and known.token in versions and known.held.holds(value):
            known.moved = known.moves(value)

    def overtaken(self, name: str, value: object, look: Look, *, left_alone: bool = False) -> bool:
        """Whether a rank has a newer value, while the notebook's has stayed as it was.

        It may have stayed only until the present cell (`left_alone`).
        """
        if not look.changed or same(value, look):
            return False
        if left_alone:
            return True
        if not look.version:
            return self.there.is_older(name, value)
        known = self._versions.get(name)
        return known is not None and known.token == look.version and not self.changed(name, value)

    def kept(self, space: Mapping[str, Any]) -> dict[str, str]:
        """Return the versions of the names to whose objects other values may refer.

        Of a tuple only to those inside: Python may have used it for something else, too.
        """
        return {
            name: version.token
            for name, version in self._versions.items()
            if version.held.holds(value := space.get(name, ABSENT))
            and (isinstance(value, tuple) or not isinstance(value, FIXED))
        }

    def stale(self, name: str, value: object) -> bool:
        """Return whether the ranks may have this object of the notebook in an older state."""
        known = self._versions[name]
        if known.drifted:
            return not self.moved_with_others(name)
        return not (known.contents is None or known.contents.same(value))

    def edited(self, name: str, value: object) -> bool:
        """Return whether ranks have this object in an older state, and can get its new one."""
        known = self._versions.get(name)
        return (
            known is not None
            and known.held.holds(value)
            and self.follows(name)
            and (self.stale(name, value))
        )

    def stays(self, name: str, value: object) -> bool:
        """Return whether an object has changed that holders on the ranks keep as it was.

        Of models and arrays this is usual, and takes longer.
        """
        known = self._versions.get(name)
        return (
            known is not None
            and known.held.holds(value)
            and isinstance(known.contents, Complete)
            and not hasattr(type(value), "__array__")
            and not known.contents.same(value)
        )

    def follows(self, name: str) -> bool:
        """Return whether ranks that have an object get its new state once it has changed here."""
        known = self._versions[name].contents
        return known is None or known.plain

    def moved_with_others(self, name: str) -> bool:
        """Return whether ranks have all that has changed in a value, under names of its own."""
        differing = [held.value() for held in self._versions[name].differing]
        return bool(differing) and all(
            any(not self.stale(other, value) for other, value in self._inside_of(name, one))
            for one in differing
        )

    def moves_with_others(self, name: str) -> list[str]:
        """Return the names of objects inside of a value that have changed, and that can be sent."""
        differing = [held.value() for held in self._versions[name].differing]
        found = {other: value for one in differing for other, value in self._inside_of(name, one)}
        return [other for other, value in found.items() if self.stale(other, value)]

    def _inside_of(self, name: str, one: object) -> Iterator[tuple[str, object]]:
        """Yield the names, and their values, that have this object, and that a value holds."""
        parts = self._versions[name].parts
        for other, known in self._versions.items():
            # An object that is gone is None.
            inside = one is not None and (name in known.holders or other in parts)
            if inside and known.has(one) and not known.drifted and self.follows(other):
                yield other, known.held.value()

    def shares(self, name: str, holders: Iterable[str]) -> None:
        """Record that other values on the ranks have the object of this name."""
        self._versions[name].holders.update(holders)

    def compares_all(self, name: str) -> bool:
        """Return whether all that a plain value holds is compared."""
        return isinstance(self._versions[name].contents, Complete)

    def are_same(self, name: str) -> Callable[[str | None], bool]:
        """Return a function that says whether a rank's version is of the same object as ours."""
        mine = self._versions[name].id
        return lambda token: token is not None and token.partition(":")[0] == mine

    def forget(self, space: Mapping[str, Any], used: Iterable[str] = ()) -> list[str]:
        """Forget names that were deleted in the notebook, and values that were replaced there.

        Returns
        -------
        list of str
            The deleted names that are in `used`; each is returned only once.
        """
        for name, version in list(self._versions.items()):
            if name not in space:
                self._keep_class(version)
                del self._versions[name]
                self._deleted.add(name)
            elif not version.held.holds(space[name]):
                self._keep_class(version)
                version.held, version.contents = _REPLACED, None
                version.inside, version.inside_before = [], []
        self.there.forget(space)
        if not self._deleted:
            return []
        self._deleted -= space.keys()
        gone = self._deleted.intersection(used)
        self._deleted -= gone
        self._told_deleted |= gone
        return sorted(gone)

    def _keep_class(self, known: Version | None) -> None:
        """Remember a class whose name has got another value, while objects have it."""
        kind = None if known is None else known.held.value()
        if isinstance(kind, type) and known is not None and known.contents is not None:
            self._earlier[kind] = known.contents
            if len(self._earlier) > MOST_EARLIER:
                self._earlier.pop(next(iter(self._earlier)))

    def edited_earlier(self) -> list[type]:
        """Return the edited ones of the sent classes whose names have got other values."""
        edited = [kind for kind, known in self._earlier.items() if not known.same(kind)]
        for kind in edited:
            if (now := contents(kind)) is not None:
                self._earlier[kind] = now
        return edited

    def reloads(self, modules: Iterable[ModuleType]) -> dict[str, int]:
        """Return how often the notebook has reloaded modules, and those that they import."""
        found = with_imported(*modules)
        for name, module in found.items():
            read, count = self._modules.get(name, (None, -1))
            if read is None or not read.is_last(module):
                self._modules[name] = Read(module), count + 1
        return {name: self._modules[name][1] for name in found}

    # -- what code reads -----------------------------------------------------------------------

    def found(
        self, name: str, reads: Iterable[str], mentions: Iterable[str], by_code: Iterable[str],
        parts: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        """Record what this version of `name` needs, and the names of objects inside of it."""
        known = self._versions[name]
        known.reads, known.mentions = dict.fromkeys(reads), dict.fromkeys(mentions)
        known.by_code = set(by_code)
        if parts is not None:
            known.parts = {part: self._versions[part].id for part in parts}

    def found_code(self, name: str, codes: Iterable[CodeType]) -> None:
        """Record the code in this version of `name`."""
        self._versions[name].binds = {each for code in codes for each in bound_anywhere(code)}

    def binds(self, name: str) -> set[str]:
        """Return the names that functions in the sent value of `name` bind as globals."""
        return {each for known in self._with_parts(name) for each in known.binds}

    def reads(self, name: str) -> dict[str, None]:
        """Return the names that the sent value of `name` needs."""
        return {each: None for known in self._with_parts(name) for each in known.reads}

    def by_code(self, name: str) -> set[str]:
        """Return the names that only code in the sent value of `name` reads."""
        return {each for known in self._with_parts(name) for each in known.by_code}

    def mentions(self, name: str) -> dict[str, None]:
        """Return the names that annotations in the sent value of `name` mention."""
        return {each: None for known in self._with_parts(name) for each in known.mentions}

    def _with_parts(self, name: str) -> list[Version]:
        """Return what was sent under a name, and under the names of objects inside of it."""
        found = {name: self._versions[name]} if name in self._versions else {}
        todo = [*found.values()]
        while todo:
            for part, made in todo.pop().parts.items():
                known = self._versions.get(part)
                if known is not None and known.id == made and part not in found:
                    found[part] = known
                    todo.append(known)
        return [*found.values()]
