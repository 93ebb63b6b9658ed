"""The names a rank holds: which it has, and copies of them for a rank that was replaced."""

from __future__ import annotations

import io
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.rank.values import cell_sources, keras_models
from nbdist.rank.values.contents import Contents, Held, contents
from nbdist.rank.values.parcels import Packing, by_need, unpack
from nbdist.rank.values.pickles import ByValue
from nbdist.rank.values.renewed_objects import State
from nbdist.rank.values.user_errors import CannotTravel
from nbdist.wire.shared_memory import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.wire.parcel import Parcel

OURS = frozenset({"rank", "local_rank", "world_size", "device"})
"""Names every rank gets from us; each rank keeps its own."""
ABSENT = object()


class _Brought(NamedTuple):
    """A name that is as the notebook bound it."""

    token: str
    held: Held
    contents: Contents | None
    """When it was brought."""


class Names:
    """The shell's namespace as the user sees it. Main thread, `holds` and `let_go` aside.

    Parameters
    ----------
    shell
        The rank's own.
    offering
        Where what is offered to the notebook lies; in memory that only this host has by default.
    """

    def __init__(self, shell: InteractiveShell, offering: Blocks | None = None) -> None:
        self._shell = shell
        self._brought: dict[str, _Brought] = {}
        self._waiting: tuple[Parcel, dict[str, Any]] | None = None
        """Received and not yet bound: another rank may fail to receive it."""
        self._offered = offering or Blocks()

    # -- brought from the notebook -------------------------------------------------------------

    def holds(self, names: list[str], edited: list[str] | None = None) -> dict[str, str]:
        """Return the versions of these names here, '' for the ranks' own. Any thread.

        Parameters
        ----------
        names
            The names.
        edited
            Those that the notebook has changed in place: if cells here have, too, they are the
            ranks' own from now on.
        """
        for name in edited or ():
            if not self._untouched(name):
                self._brought.pop(name, None)
        return {name: self._version(name) for name in names if name in self._shell.user_ns}

    def _version(self, name: str) -> str:
        brought, value = self._brought.get(name), self._shell.user_ns.get(name, ABSENT)
        return brought.token if brought is not None and brought.held.holds(value) else ""

    def _untouched(self, name: str) -> str:
        """Return the version of a name, '' where cells have changed the object, too."""
        brought, token = self._brought.get(name), self._version(name)
        if brought is None or not token or brought.contents is None:
            return token
        return token if brought.contents.same(self._shell.user_ns[name]) else ""

    def receive(self, parcel: Parcel) -> list[str]:
        """Take in a parcel without binding anything for good; return what will be bound."""
        self._waiting = None
        space = self._shell.user_ns
        before = {name: space[name] for name in parcel.names if name in space}
        chosen = {}
        try:
            for name, value in unpack(parcel):
                # '' where a cell here bound it, which stays.
                version = self._version(name) if name in before else None
                if name in parcel.forced or version not in ("", parcel.names[name]):
                    chosen[name] = value
                    if not isinstance(value, State):
                        space[name] = value  # others may need it to be put together
        finally:
            for name in parcel.names:
                space.pop(name, None)
            space.update(before)
        self._waiting = parcel, chosen
        return list(chosen)

    def bind(self, parcel: str) -> None:
        """Bind what was received."""
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
        """Forget what was received and not bound."""
        self._waiting = None

    def let_go_of_rebound(self) -> None:
        """Forget the versions of names that a cell has bound anew or deleted."""
        space = self._shell.user_ns
        for name, brought in list(self._brought.items()):
            if not brought.held.holds(space.get(name, ABSENT)):
                self._brought.pop(name, None)

    # -- on their way to the notebook ----------------------------------------------------------

    def offer(self, names: list[str]) -> dict[str, Any]:
        """Pack values for the notebook, and say why some could not be packed."""
        self._offered.close()
        space = self._shell.user_ns
        refused = {name: "it is not defined there" for name in names if name not in space}
        there = [name for name in names if name in space]
        refused |= cannot_travel({name: space[name] for name in there}, _for_notebook)
        packing = _for_notebook()
        for name in there:
            if name not in refused:
                packing.add(name, space[name])
        sizes = {item.name: item.size for item in packing.items.values()}
        parcel = packing.close(self._offered, self.holds(there))
        return {"parcel": parcel, "refused": refused, "sizes": sizes}

    def let_go(self) -> None:
        """Let go of what was offered: the notebook has it. Any thread."""
        self._offered.close()

    # -- copied to a replaced rank -------------------------------------------------------------

    def mine(self) -> list[str]:
        """Return the names the user's cells have bound here."""
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
        # By one pickler: an optimizer must go on pointing at its model's parameters.
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
        """Bind what another rank wrote, and import from where that does; return the names."""
        taken = []
        with Path(path).open("rb") as file:
            # Of this cluster: the folder is the user's alone.
            unpickler = pickle.Unpickler(file)  # noqa: S301
            folder, sys.path[:] = unpickler.load()
            with suppress(OSError):  # another host's
                os.chdir(folder)
            while isinstance(found := unpickler.load(), tuple):
                name, token, value = found
                self._shell.user_ns[name] = value
                self._note(name, token, value)
                taken.append(name)
        cell_sources.put(found)
        return sorted(taken)


def cannot_travel(values: dict[str, Any], new: Callable[[], Packing]) -> dict[str, str]:
    """Try each value by itself and say why it cannot be packed."""
    refused = {}
    for name, value in values.items():
        try:
            new().add(name, value)
        except CannotTravel as err:
            refused[name] = str(err)
    return refused


def _for_notebook() -> Packing:
    return Packing(carry_globals=True)


class Pickler(ByValue):
    """Leaves out what the other rank has of its own: process groups, and what it cannot use."""

    def reducer_override(self, obj: Any) -> Any:
        """Say how to rebuild `obj` (pickle's protocol)."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and isinstance(obj, distributed.ProcessGroup):
            return _group_named, (_ddp().name_of(obj),)
        parallel = sys.modules.get("torch.nn.parallel")
        if parallel is not None and isinstance(obj, parallel.DistributedDataParallel):
            return _blank, (type(obj),), _ddp().take_apart(obj), None, None, _set_ddp_state
        tensors = sys.modules.get("torch.distributed.tensor")
        if tensors is not None and isinstance(obj, tensors.DTensor):
            msg = "it holds shards, and each rank has others: those of the replaced rank are lost"
            raise pickle.PicklingError(msg)
        moved = _to_own_gpu(obj)
        if moved is not NotImplemented:
            return moved
        if keras_models.trained_by_horovod(obj):
            raise pickle.PicklingError(f"{keras_models.LIVES_THERE}: compile it there")
        return super().reducer_override(obj)


def _to_own_gpu(obj: Any) -> Any:
    """Say how what lies on this rank's GPU comes to lie on the other's own."""
    torch = sys.modules.get("torch")
    if torch is None or not type(obj).__module__.startswith("torch"):
        return NotImplemented
    from nbdist.rank.values import storages

    if isinstance(obj, torch.storage.TypedStorage):
        return storages.reduce_typed(obj)
    if isinstance(obj, torch.UntypedStorage):
        return storages.reduce_for_rank(obj)
    return storages.reduce_device_for_rank(obj) if isinstance(obj, torch.device) else NotImplemented


def _ddp() -> Any:  # the rank's `Ddp`, where torch is
    from nbdist.backends.ddp import rank_group  # needs torch

    if rank_group.current is None:
        raise pickle.PicklingError("it holds a process group, which only --backend ddp knows")
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
