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
from nbdist.rank.values import cell_sources, keras_models
from nbdist.rank.values.contents import Contents, Held, contents
from nbdist.rank.values.culprits import explained
from nbdist.rank.values.parcels import Packing, by_need, unpack
from nbdist.rank.values.pickles import ByValue
from nbdist.rank.values.refusals import look_at
from nbdist.rank.values.renewed_objects import State
from nbdist.rank.values.user_errors import RAISED, CannotTravel
from nbdist.wire.parcel_format import Offer
from nbdist.wire.shared_memory import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._waiting: tuple[Parcel, dict[str, Any]] | None = None
        """Values received but not yet bound, because another rank may fail to receive them."""
        self._offered = offering or Blocks()

    # -- brought from the notebook -------------------------------------------------------------

    def holds(self, names: list[str], edited: list[str] | None = None) -> dict[str, str]:
        """Return this rank's versions of these names, '' if a cell here bound them. Any thread.

        Parameters
        ----------
        names
            The names.
        edited
            Names that the notebook has changed in place: if cells here have changed them, too, they
            count as bound here from now on.
        """
        for name in edited or ():
            if not self._untouched(name):
                self._brought.pop(name, None)
        return {name: self._version(name) for name in names if name in self._shell.user_ns}

    def _version(self, name: str) -> str:
        brought, value = self._brought.get(name), self._shell.user_ns.get(name, ABSENT)
        return brought.token if brought is not None and brought.held.holds(value) else ""

    def _untouched(self, name: str) -> str:
        """Return the version of a name; '' if cells here have changed the object."""
        brought, token = self._brought.get(name), self._version(name)
        if brought is None or not token or brought.contents is None:
            return token
        return token if brought.contents.same(self._shell.user_ns[name]) else ""

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
                if name in parcel.forced or version not in ("", parcel.names[name]):
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
        for name, value in values.items():
            if isinstance(value, State):
                value.give_to(space[name])
            else:
                space[name] = value
        for name in values:
            self._note(name, received.names[name], space[name])

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
        refused |= cannot_travel(there, _for_notebook)
        packing = _for_notebook()
        for path, value in there.items():
            if path not in refused:
                packing.add(path, value)
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
        for name in names:
            try:
                _dumps(space[name])
            except BaseException as err:  # a user's __reduce__ may raise anything
                refused[name] = f"{type(err).__name__}: {err}"
        # With one pickler: an optimizer must refer to its model's parameters afterwards, too.
        good = by_need((name for name in names if name not in refused), space)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            pickler = Pickler(file, carry_globals=False)
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


def _for_notebook() -> Packing:
    return Packing(carry_globals=True)


class Pickler(ByValue):
    """Pickles for another rank: process groups by name, GPU data for that rank's own GPU."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild `obj` (see `pickle.Pickler.reducer_override`)."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and isinstance(obj, distributed.ProcessGroup):
            return _group_named, (_ddp().name_of(obj),)
        parallel = sys.modules.get("torch.nn.parallel")
        if parallel is not None and isinstance(obj, parallel.DistributedDataParallel):
            return _blank, (type(obj),), _ddp().take_apart(obj), None, None, _set_ddp_state
        tensors = sys.modules.get("torch.distributed.tensor")
        if tensors is not None and isinstance(obj, tensors.DTensor):
            msg = "it holds shards, which differ between ranks: those of the replaced rank are lost"
            raise pickle.PicklingError(msg)
        moved = _to_own_gpu(obj)
        if moved is not NotImplemented:
            return moved
        if keras_models.trained_by_horovod(obj):
            raise pickle.PicklingError(f"{keras_models.LIVES_THERE}: compile the model there")
        return super().reducer_override(obj)


def _to_own_gpu(obj: Any) -> Any:
    """Return how to rebuild an object on this rank's GPU on the other rank's own GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not type(obj).__module__.startswith("torch"):
        return NotImplemented
    from nbdist.rank.values import storages

    if isinstance(obj, torch.storage.TypedStorage):
        return storages.reduce_typed(obj)
    if isinstance(obj, torch.UntypedStorage):
        return storages.reduce_for_rank(obj)
    return storages.reduce_device_for_rank(obj) if isinstance(obj, torch.device) else NotImplemented


def _ddp() -> Any:  # the rank's `Ddp`
    from nbdist.backends.ddp import rank_group  # needs torch

    if rank_group.current is None:
        raise pickle.PicklingError("it holds a process group, which only --backend ddp supports")
    return rank_group.current


def _group_named(name: str) -> Any:  # a ProcessGroup
    return _ddp().group_named(name)


def _blank(cls: Any) -> Any:
    return cls.__new__(cls)


def _set_ddp_state(model: Any, state: dict[str, Any]) -> None:
    _ddp().put_together(model, state)


def _dumps(value: object) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, carry_globals=False).dump(value)
    return buffer.getvalue()
