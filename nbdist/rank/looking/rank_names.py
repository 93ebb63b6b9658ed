"""The names on a rank: received from the notebook, sent to it, copied to a replaced rank."""

from __future__ import annotations

import io
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.backends.models.variable_paths import at
from nbdist.errors import UsageError
from nbdist.rank.looking import own_marks
from nbdist.rank.looking.copied_names import Pickler
from nbdist.rank.looking.likeness import alike, likeness, text_of
from nbdist.rank.metrics import gpu
from nbdist.rank.values import cell_sources, rank_marks
from nbdist.rank.values.contents import contents
from nbdist.rank.values.culprits import explained
from nbdist.rank.values.gradients import Gradients
from nbdist.rank.values.held import Contents, Held
from nbdist.rank.values.kinds import PLAIN
from nbdist.rank.values.overlaps import Overlaps
from nbdist.rank.values.parcels import Packing, by_need, unpack
from nbdist.rank.values.refusals import look_at
from nbdist.rank.values.renewed_objects import State
from nbdist.rank.values.shared_parts import Parts
from nbdist.rank.values.small_contents import Complete
from nbdist.rank.values.user_errors import RAISED, CannotTravel
from nbdist.wire.inspection import Edited, Look, Marks
from nbdist.wire.parcel_format import Offer
from nbdist.wire.shared_memory import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.wire.parcel_format import Parcel

OURS = frozenset({"rank", "local_rank", "world_size", "device"})
"""Names that nbdist defines on every rank; they are never sent between ranks."""
ABSENT = object()


class _Brought(NamedTuple):
    """A name that was sent from the notebook."""

    token: str
    held: Held
    contents: Contents | None
    """The contents at that time."""


class Names:
    """The shell's namespace as the user sees it. Main thread, except `holds` and `let_go`.

    Parameters
    ----------
    shell
        The rank's shell.
    offering
        Memory for values that are offered to the notebook; by default shared memory of this host.
    """

    def __init__(self, shell: InteractiveShell, offering: Blocks | None = None) -> None:
        self._shell = shell
        self._brought: dict[str, _Brought] = {}
        self._returned: dict[str, _Brought] = {}
        """Names whose values the notebook has got, as they were then."""
        self._waiting: tuple[Parcel, dict[str, Any]] | None = None
        """Values received but not yet bound, because another rank may fail to receive them."""
        self._offered = offering or Blocks()
        self._place = rank_marks.Place.here()

    # -- brought from the notebook -------------------------------------------------------------

    def holds(
        self,
        names: list[str],
        edited: Mapping[str, Edited] | None = None,
        *,
        compared: bool = False,
    ) -> dict[str, str]:
        """Return this rank's versions of these names, '' if a cell here bound them. Any thread.

        Parameters
        ----------
        names
            The names.
        edited
            Names that the notebook has changed in place: if cells here have changed them, too, they
            count as bound here from now on, unless both changes were the same.
        compared
            Whether to return a digest, '' if there is none, for what cells here have changed.
        """
        for name, change in (edited or {}).items():
            if not self._may_get(name):
                self._settle(name, change)
        version = self._compared if compared else self._version
        return {name: version(name) for name in names if name in self._shell.user_ns}

    def _settle(self, name: str, edited: Edited) -> None:
        """Settle which version a name has that the notebook and cells here have changed."""
        mine, value = self._version(name), self._shell.user_ns.get(name)
        is_same = mine.partition(":")[0] == edited.version.partition(":")[0]
        if is_same and edited.likeness and likeness(value) == edited.likeness:
            self._note(name, edited.version, value)
        else:
            self._brought.pop(name, None)

    def _compared(self, name: str) -> str:
        """Return the version of a name, or a digest if cells here have changed the object."""
        return self._untouched(name) or alike(self._shell.user_ns.get(name))

    def _version(self, name: str) -> str:
        brought, value = self._brought.get(name), self._shell.user_ns.get(name, ABSENT)
        return brought.token if brought is not None and brought.held.holds(value) else ""

    def _untouched(self, name: str) -> str:
        """Return the version of a name; '' if cells here have changed the object."""
        brought, token = self._brought.get(name), self._version(name)
        if brought is None or not token or brought.contents is None:
            return token
        return token if brought.contents.same(self._shell.user_ns[name]) else ""

    def _may_get(self, name: str) -> bool:
        """Return whether the notebook's new state of an object would undo no change of a cell."""
        brought, value = self._brought.get(name), self._shell.user_ns.get(name)
        if brought is None or not self._version(name):
            return False
        return brought.contents is None or brought.contents.may_get(value)

    def _may_have_gradients(self, name: str) -> bool:
        """Return whether cells here have not trained a model: else its own gradients stay."""
        known, value = self._brought[name].contents, self._shell.user_ns[name]
        return known is not None and known.same(value) and known.gradients() == "same"

    def look(self, names: list[str], *, idle: bool) -> dict[str, Look]:
        """Look at names; if this rank is not idle, only at plain values. Main thread if idle."""
        space = self._shell.user_ns
        return {name: self._look(name, space[name], idle) for name in names if name in space}

    def _look(self, name: str, value: Any, idle: bool) -> Look:
        version, given = self._version(name), self._returned.get(name)
        if given is not None and not given.held.holds(value):
            given = None
        if not idle:
            text = text_of(value) if type(value) in PLAIN else ""
            return Look(version, not version and given is None, value=text, busy=True)
        settled = gpu.settled()  # else to read it would wait for the GPU
        changed, graded = not version, False
        if given is None:
            given = self._brought.get(name) if version else None
        if given is not None:
            known = given.contents if settled else None
            changed = known is not None and not known.same(value)
            graded = known is not None and known.gradients() == "other"
        # Gradients are not compared: other ones are told if the parameters are alike, too.
        alike = likeness(value) if changed or not version else ""
        return Look(version, changed or graded, alike, text_of(value))

    def receive(self, parcel: Parcel) -> list[str]:
        """Unpickle a parcel without binding its names yet; return the names that will be bound."""
        self._waiting = None
        space = self._shell.user_ns
        before = {name: space[name] for name in parcel.names if name in space}
        chosen = {}
        try:
            for name, value in unpack(parcel):
                # '' if a cell here bound the name: the rank's value stays.
                version = self._version(name) if name in before else None
                if isinstance(value, Gradients):
                    same = version == parcel.names[name] and self._may_have_gradients(name)
                    new = same and value.fits(before[name])
                else:
                    new = version not in ("", parcel.names[name])
                if name in parcel.forced or new:
                    chosen[name] = value
                    if not isinstance(value, State):
                        space[name] = value  # later values may need it while they are unpickled
        finally:
            for name in parcel.names:
                space.pop(name, None)
            space.update(before)
        self._waiting = parcel, chosen
        return list(chosen)

    def bind(self, parcel: str) -> None:
        """Bind the received values."""
        if self._waiting is None or self._waiting[0].id != parcel:
            return
        (received, values), self._waiting = self._waiting, None
        space = self._shell.user_ns
        holding = self._holders() if any(isinstance(v, State) for v in values.values()) else []
        for name, value in values.items():
            if isinstance(value, State):
                value.give_to(space[name])
            else:
                space[name] = value
        for name in holding:  # the notebook, not a cell here, has changed what they hold
            self._note(name, self._brought[name].token, space[name])
        rank_marks.settle(space, [name for name in received.dealing if name in values], self._place)
        for name, value in values.items():
            was = self._brought[name].contents if isinstance(value, State) else None
            now = (None if was is None else was.got(space[name])) or contents(space[name])
            self._brought[name] = _Brought(received.names[name], Held(space[name]), now)

    def _holders(self) -> list[str]:
        """Return the names of values that may hold others, and that cells here have not changed."""
        return [
            name
            for name, brought in self._brought.items()
            if isinstance(brought.contents, Complete) and self._untouched(name)
        ]

    def _note(self, name: str, token: str, value: object) -> None:
        if token:
            self._brought[name] = _Brought(token, Held(value), contents(value))
        else:
            self._brought.pop(name, None)

    def drop(self) -> None:
        """Drop received values that were not bound."""
        self._waiting = None

    def let_go_of_rebound(self) -> None:
        """Forget the versions of names that a cell has bound again or deleted."""
        space = self._shell.user_ns
        for name, brought in list(self._brought.items()):
            if not brought.held.holds(space.get(name, ABSENT)):
                self._brought.pop(name, None)
        for name, given in list(self._returned.items()):
            if not given.held.holds(space.get(name, ABSENT)):
                self._returned.pop(name, None)

    # -- on their way to the notebook ----------------------------------------------------------

    def offer(self, names: list[str]) -> Offer:
        """Pack values for the notebook; also return why some could not be packed.

        Parameters
        ----------
        names
            Names, or paths such as `trainer.model`.
        """
        self._offered.close()
        there, refused = dict[str, Any](), dict[str, str]()
        for path in names:
            try:
                there[path] = at(self._shell.user_ns, path)
            except UsageError:
                refused[path] = "it is not defined there"
            except RAISED as err:  # a property of the user's may raise anything
                refused[path] = f"{type(err).__name__}: {err}"
        parts = Parts()
        refused |= cannot_travel(there, lambda: _for_notebook(parts, trial=True))
        packing = _for_notebook(parts)
        for path, value in there.items():
            if path not in refused:
                packing.add(path, value)
                self._returned[path] = _Brought("", Held(value), contents(value))
        sizes = {item.name: item.size for item in packing.items.values()}
        parcel = packing.close(self._offered, self.holds([*there]))
        return Offer(parcel, refused, sizes)

    def refused_by_kind(self, names: list[str]) -> dict[str, str]:
        """Return which values can never travel to the notebook, whatever they hold, and why."""
        refused = {}
        for path in names:
            try:
                value = at(self._shell.user_ns, path)
                reduce = look_at(type(value), None, to_notebook=True, trial=True)
                if reduce is not None:
                    reduce(value)
            except CannotTravel as err:
                refused[path] = explained(path, value, str(err), lambda _: "", returned=True)
            except RAISED:  # it is not there yet, or is looked at when it is packed
                continue
        return refused

    def let_go(self) -> None:
        """Release the offered values, which the notebook has now. Any thread."""
        self._offered.close()

    # -- copied to a replaced rank -------------------------------------------------------------

    def mine(self) -> list[str]:
        """Return the names that the user's cells have bound here."""
        hidden = self._shell.user_ns_hidden
        return sorted(
            name
            for name in self._shell.user_ns
            if not name.startswith("_") and name not in hidden and name not in OURS
        )

    def give(self, path: str, names: list[str]) -> dict[str, str]:
        """Write the values of `names` to a private file; return why some could not be written."""
        space = self._shell.user_ns
        refused: dict[str, str] = {}
        overlaps = Overlaps()
        for name in names:
            try:
                Pickler(io.BytesIO(), overlaps, trial=True).dump(space[name])
            except BaseException as err:  # a user's __reduce__ may raise anything
                refused[name] = f"{type(err).__name__}: {err}"
        # With one pickler: an optimizer must refer to its model's parameters afterwards, too.
        good = by_need((name for name in names if name not in refused), space)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            pickler = Pickler(file, overlaps)
            pickler.dump((os.getcwd(), sys.path))
            for name in good:
                pickler.dump((name, self._untouched(name), space[name]))
            pickler.dump(cell_sources.taken(pickler.files))
        return refused

    def take(self, path: str) -> list[str]:
        """Bind the values another rank wrote, with its import path; return the names."""
        taken = []
        with Path(path).open("rb") as file:
            # A rank of this cluster wrote the file, in a folder that only the user can access.
            unpickler = pickle.Unpickler(file)  # noqa: S301
            folder, sys.path[:] = unpickler.load()
            with suppress(OSError):  # the folder of another host
                os.chdir(folder)
            while isinstance(found := unpickler.load(), tuple):
                name, token, value = found
                self._shell.user_ns[name] = value
                self._note(name, token, value)
                taken.append(name)
        cell_sources.put(found)
        return sorted(taken)

    def marks(self) -> Marks:
        """Return what in the variables may be this rank's own."""
        names, place = self.mine(), self._place
        brought = [name for name in names if self._untouched(name)]
        found = own_marks.marks(self._shell.user_ns, names, brought, place)
        return Marks(place.rank, place.local_rank, found)

    def put_right(self, paths: list[str]) -> None:
        """Set for this rank what has come from another rank."""
        space = self._shell.user_ns
        as_brought = {name: token for name in self.mine() if (token := self._untouched(name))}
        for name in rank_marks.put_right(space, self.mine(), paths, self._place):
            self._note(name, as_brought.get(name, ""), space[name])


def cannot_travel(values: dict[str, Any], new: Callable[[], Packing]) -> dict[str, str]:
    """Try to pack each value alone; return why some cannot be packed."""

    def refuses(value: object) -> str:
        try:
            new().add("", value)
        except CannotTravel as err:
            return str(err)
        return ""

    return {
        name: explained(name, value, why, refuses, returned=True)
        for name, value in values.items()
        if (why := refuses(value))
    }


def _for_notebook(parts: Parts | None = None, *, trial: bool = False) -> Packing:
    return Packing(parts=parts, carry_globals=True, trial=trial)
