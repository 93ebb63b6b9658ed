"""Values into a parcel and out of it; both ends of a bringing use this. Any process."""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import secrets
import time
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.errors import NbdistError
from nbdist.machine.amounts import in_bytes
from nbdist.rank.values import cell_sources
from nbdist.rank.values.pickles import ByValue
from nbdist.rank.values.refusals import look_at, why_not
from nbdist.rank.values.shared_parts import CONTAINERS, Parts, find
from nbdist.rank.values.user_errors import RAISED, CannotTravel
from nbdist.wire import shared_memory
from nbdist.wire.parcel import Parcel

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from nbdist.rank.values.renewed_objects import State

NEED_NOTHING = (
    ModuleType, FunctionType, type, int, float, complex, str, bytes, type(None),
)  # fmt: skip
"""Are put together without a look at other names."""
SHARED_BYTES = 1 << 18
"""Buffers of this size go into shared memory; smaller ones, and streams, into the message."""
TOLD_BYTES = 10_000
"""Of what is smaller the type is told instead of the size."""
MOST_BLOCKS = 100
"""Each name has a block of its own, so that its memory can be given back, up to this many."""


@dataclass
class Item:
    """One name in a parcel."""

    name: str
    kind: str
    size: int
    seconds: float
    objects: int
    """Bytes of it that had to be pickled object by object."""

    def __str__(self) -> str:
        size = in_bytes(self.size)
        plain = self.kind in ("module", "class", "function") or self.size < TOLD_BYTES
        return f"{self.name} ({self.kind if plain else size})"


class Packing:
    """A parcel being made. Nothing is copied before `close`.

    Parameters
    ----------
    devices
        How many GPUs the receivers see; None lets everything arrive on the CPU.
    parts
        What the receivers have already.
    carry_globals
        Whether functions bring the globals they use.
    trial
        Whether it is only to show what travels, and what code in it uses.
    """

    def __init__(
        self,
        devices: int | None = None,
        parts: Parts | None = None,
        *,
        carry_globals: bool = False,
        trial: bool = False,
    ) -> None:
        self._stream = io.BytesIO()
        self._buffers: list[list[memoryview]] = []
        self._shared = 0  # bytes in them
        self.parts = parts or Parts()
        kind = _PackerOfContainers if self.parts.containers else _Packer
        self._pickler = kind(
            self._stream, self._keep, devices, self.parts,
            carry_globals=carry_globals, trial=trial,
        )  # fmt: skip
        self.items: dict[str, Item] = {}

    @property
    def uses(self) -> dict[str, None]:
        """Names that the receivers need besides."""
        return self._pickler.uses

    @property
    def codes(self) -> list[CodeType]:
        """Code of the functions in it."""
        return self._pickler.codes

    def add(self, name: str, value: object, state: State | None = None) -> None:
        """Pickle a value, or only its state for receivers that have the object.

        Raises
        ------
        CannotTravel
            If it cannot be; the parcel is of no use then.
        """
        if not self._buffers or (self._buffers[-1] and len(self._buffers) < MOST_BLOCKS):
            self._buffers.append([])
        start, shared, began = self._stream.tell(), self._shared, time.monotonic()
        try:
            self._pickler.dump(value if state is None else state)
        except RAISED as err:  # a user's __reduce__ may raise anything
            raise CannotTravel(why_not(err)) from err
        stream = self._stream.tell() - start
        size, seconds = stream + self._shared - shared, time.monotonic() - began
        self.items[name] = Item(name, _kind(value), size, seconds, stream)

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a large buffer out of the stream; True leaves a small one in it."""
        raw = buffer.raw()
        if raw.nbytes < SHARED_BYTES:
            return True
        self._buffers[-1].append(raw)
        self._shared += raw.nbytes
        return False

    def close(
        self, blocks: shared_memory.Blocks, tokens: dict[str, str], forced: Iterable[str] = (),
        imports: Iterable[str] = (),
    ) -> Parcel:  # fmt: skip
        """Put everything where receivers find it.

        Raises
        ------
        NbdistError
            If there is no room for it.
        """
        stream = self._stream.getvalue()
        parts = [part for part in self._buffers if part]
        if len(stream) >= SHARED_BYTES:
            parts.insert(0, [memoryview(stream)])
            stream = b""
        shared_memory.check_room(sum(buffer.nbytes for part in parts for buffer in part))
        return Parcel(
            id=secrets.token_hex(4),
            names={name: tokens.get(name, "") for name in self.items},
            stream=stream,
            blocks=[blocks.write(part) for part in parts],
            imports=list(imports),
            forced=list(forced),
            sources=cell_sources.taken(self._pickler.files),
        )


class _Packer(ByValue):
    """Pickles with every large buffer apart, and refuses what is of no use elsewhere."""

    def __init__(
        self,
        file: io.BytesIO,
        keep: Any,
        devices: int | None,
        parts: Parts,
        *,
        carry_globals: bool,
        trial: bool,
    ) -> None:
        super().__init__(file, carry_globals=carry_globals, buffer_callback=keep)
        self._devices, self._parts, self._to_notebook = devices, parts, carry_globals
        self._trial = trial
        self._known: dict[type, Any] = {}

    def reducer_override(self, obj: Any) -> Any:  # pickle's protocol
        kind = type(obj)
        if kind not in self._known:
            self._known[kind] = look_at(
                kind, self._devices, to_notebook=self._to_notebook, trial=self._trial
            )
        own = self._known[kind]
        reduced = self._parts.reduce(obj) if own is None else own(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


class _PackerOfContainers(_Packer):
    """Refers to lists, dicts and sets that the receivers have, too.

    That takes a look at each object that is pickled, and so is done only where there are such.
    """

    def persistent_id(self, obj: Any) -> Any:  # pickle's protocol
        if type(obj) in CONTAINERS and id(obj) in self._parts.containers:
            return self._parts.way_to(obj)
        return None


class _Unpacker(pickle.Unpickler):
    """Finds what was referred to."""

    def persistent_load(self, pid: tuple[str, str, str]) -> Any:  # pickle's protocol
        return find(*pid)


def by_need(names: Iterable[str], space: Mapping[str, Any], used: Container[str] = ()) -> list[str]:
    """Order names so that what an object may need when it is put together comes before it.

    Parameters
    ----------
    names
        The names.
    space
        Their values.
    used
        Those that code of others uses.
    """
    return sorted(
        names, key=lambda name: (not isinstance(space[name], NEED_NOTHING), name not in used)
    )


def unpack(parcel: Parcel, buffers: list[memoryview] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the values of a parcel, each with memory of this process's own.

    Those of the notebook's classes may need names that came before, when they are put together.

    Parameters
    ----------
    parcel
        What was packed.
    buffers
        Its blocks, if they have been mapped before.

    Raises
    ------
    NbdistError
        If there is not enough memory for them.
    """
    if not parcel.names:
        return
    buffers = map_blocks(parcel) if buffers is None else list(buffers)
    with _telling_of_memory(parcel):
        stream = parcel.stream or buffers.pop(0)
        for name in parcel.imports:
            importlib.import_module(name)
        cell_sources.put(parcel.sources)
        # The sender is this cluster's notebook or rank, on a channel that only they can use.
        unpickler = _Unpacker(io.BytesIO(stream), buffers=iter(buffers))
        for name in parcel.names:
            yield name, unpickler.load()


def unpacked(parcel: Parcel, buffers: list[memoryview]) -> dict[str, Any]:
    """Return the values of a parcel, in the notebook.

    Raises
    ------
    NbdistError
        If one cannot be put together here.
    """
    try:
        return dict(unpack(parcel, buffers))
    except NbdistError:
        raise
    except RAISED as err:  # a class may be missing here, or raise anything on its way in
        names = ", ".join(parcel.names)
        raise NbdistError(
            f"{names} cannot be put together here: {type(err).__name__}: {err}. If a cell of the "
            "notebook defines a class or function of it, run that cell first"
        ) from err


def map_blocks(parcel: Parcel, *, copied: bool = False) -> list[memoryview]:
    """Map the large buffers of a parcel while its sender still holds them, or copy them.

    Raises
    ------
    NbdistError
        If there is not enough memory for them.
    """
    with _telling_of_memory(parcel):
        take = shared_memory.copy if copied else shared_memory.attach
        return [buffer for block in parcel.blocks for buffer in take(block)]


@contextlib.contextmanager
def _telling_of_memory(parcel: Parcel) -> Iterator[None]:
    try:
        yield
    except (MemoryError, OSError) as err:
        if isinstance(err, OSError) and err.errno not in shared_memory.SHORT:
            raise
        size = sum(block.size for block in parcel.blocks)
        raise NbdistError(
            f"there is not enough memory for {', '.join(list(parcel.names)[:5])} ({in_bytes(size)})"
        ) from err


def _kind(value: object) -> str:
    if isinstance(value, ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    return "function" if isinstance(value, FunctionType) else type(value).__name__
