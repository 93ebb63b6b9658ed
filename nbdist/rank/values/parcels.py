"""Packs named values into a parcel and unpacks them, between notebook and ranks. Any process."""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import secrets
import time
import warnings
import weakref
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.errors import NbdistError
from nbdist.machine.amounts import in_bytes
from nbdist.rank.values import cell_sources
from nbdist.rank.values.memory_there import find
from nbdist.rank.values.overlaps import as_usual, may_overlap, overlapping
from nbdist.rank.values.own_modules import module_of, reload_like_notebook
from nbdist.rank.values.pickles import ByValue
from nbdist.rank.values.rank_marks import deals_out
from nbdist.rank.values.refusals import look_at, why_not
from nbdist.rank.values.shared_parts import CONTAINERS, Parts
from nbdist.rank.values.user_errors import RAISED, CannotTravel
from nbdist.wire import shared_memory
from nbdist.wire.parcel_format import Parcel

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from nbdist.rank.values.renewed_objects import State

NEED_NOTHING = (
    ModuleType, FunctionType, type, int, float, complex, str, bytes, type(None),
)  # fmt: skip
"""Types that are unpickled without other names."""
IN_MODULES = (ModuleType, FunctionType, type)
SHARED_BYTES = 1 << 18
"""From this size on buffers and streams go into shared memory; smaller ones into the message."""
SEARCHED_BYTES = 1 << 21
"""Up to this size the pickle of a value is searched for lists, dicts and sets."""
TOLD_BYTES = 10_000
"""For smaller values, messages give the type instead of the size."""
MOST_BLOCKS = 100
"""Up to this many names have a memory block of their own, which can be freed separately."""


@dataclass
class Item:
    """A name in a parcel."""

    name: str
    kind: str
    size: int
    seconds: float
    objects: int
    """Bytes that had to be pickled object by object."""
    deals: bool = False
    """Whether it holds what deals data out to ranks, see `rank_marks`."""

    def __str__(self) -> str:
        size = in_bytes(self.size)
        plain = self.kind in ("module", "class", "function") or self.size < TOLD_BYTES
        return f"{self.name} ({self.kind if plain else size})"


class Packing:
    """A parcel under construction. Nothing is copied before `close`.

    Parameters
    ----------
    devices
        How many GPUs the receivers see; None puts everything on the CPU there.
    parts
        Objects that the receivers already have.
    carry_globals
        Whether functions take along the globals that they use.
    trial
        Whether this only tests what can be pickled, which names its code uses, and what shares
        memory. The parcel itself has the same `parts` as the trials before.
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
        # Weak: the pickler holds the user's objects, and is not to outlive this one in a cycle.
        me = weakref.proxy(self)
        self._pickler = kind(
            self._stream, lambda buffer: me._keep(buffer), devices, self.parts,  # noqa: PLW0108
            carry_globals=carry_globals, trial=trial,
        )  # fmt: skip
        self.items: dict[str, Item] = {}
        self.classes = 0
        """How many classes without a name come first."""

    @property
    def uses(self) -> dict[str, None]:
        """Further names that the receivers need."""
        return self._pickler.uses

    @property
    def read(self) -> dict[str, None]:
        """Of these, the names that code reads."""
        return self._pickler.read

    @property
    def mentions(self) -> dict[str, None]:
        """Names that annotations mention, for whoever reads these."""
        return self._pickler.mentions

    @property
    def met(self) -> set[int]:
        """The ids of the objects in the pickled values.

        Of values that are pickled from very many objects, without lists, dicts and sets.
        """
        memo = self._pickler.memo.copy() if self._stream.tell() < SEARCHED_BYTES else {}
        return self._pickler.reduced.union(memo)

    @property
    def modules(self) -> list[ModuleType]:
        """The user's own modules to which the parcel refers."""
        return [*self._pickler.modules.values()]

    @property
    def codes(self) -> list[CodeType]:
        """The code of the functions in the parcel."""
        return self._pickler.codes

    def add(self, name: str, value: object, state: State | None = None) -> None:
        """Pickle a value, or only its state for receivers that have the object.

        Raises
        ------
        CannotTravel
            If the value cannot be pickled; then the parcel is unusable.
        """
        if not self._buffers or (self._buffers[-1] and len(self._buffers) < MOST_BLOCKS):
            self._buffers.append([])
        start, shared, began = self._stream.tell(), self._shared, time.monotonic()
        self._pickler.deals = False
        try:
            self._pickler.dump(value if state is None else state)
        except RAISED as err:  # a user's __reduce__ may raise anything
            raise CannotTravel(why_not(err)) from err
        stream = self._stream.tell() - start
        size, seconds = stream + self._shared - shared, time.monotonic() - began
        deals = self._pickler.deals
        self.items[name] = Item(name, _kind(value), size, seconds, stream, deals)

    def add_class(self, kind: type) -> None:
        """Pickle a class without a name that the receivers have, before all names."""
        self.add("", kind)
        del self.items[""]
        self.classes += 1

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep a large buffer apart; return True to leave a small one in the stream."""
        raw = buffer.raw()
        if raw.nbytes < SHARED_BYTES:
            return True
        self._buffers[-1].append(raw)
        self._shared += raw.nbytes
        return False

    def close(
        self, blocks: shared_memory.Blocks, tokens: dict[str, str], forced: Iterable[str] = (),
        imports: Iterable[str] = (), reloads: dict[str, int] | None = None,
    ) -> Parcel:  # fmt: skip
        """Write everything into the blocks; return the parcel that describes them.

        Raises
        ------
        NbdistError
            If there is not enough memory.
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
            classes=self.classes,
            stream=stream,
            blocks=[blocks.write(part) for part in parts],
            imports=list(imports),
            reloads=reloads or {},
            forced=list(forced),
            sources=cell_sources.taken(self._pickler.files),
            dealing=[item.name for item in self.items.values() if item.deals],
        )


class _Packer(ByValue):
    """Pickles with large buffers apart, and refuses values that are useless elsewhere."""

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
        self._devices, self._parts, self.to_notebook = devices, parts, carry_globals
        self._trial = trial
        self._known: dict[type, Any] = {}
        self.modules: dict[str, ModuleType] = {}
        self.reduced: set[int] = set()
        """The ids of the objects that are not plain data."""
        self._dealing: set[type] = set()
        self.deals = False
        """Whether the present value holds what deals data out to ranks."""

    def reducer_override(self, obj: Any) -> Any:  # pickle's protocol
        kind = type(obj)
        self.reduced.add(id(obj))
        if kind not in self._known:
            self._known[kind] = self._reducer_of(kind)
            if deals_out(kind):
                self._dealing.add(kind)
        self.deals |= kind in self._dealing
        if isinstance(obj, IN_MODULES):
            module = module_of(obj)
            if module is not None:
                self.modules[module.__name__] = module
        reduced = self._known[kind](obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced

    def _reducer_of(self, kind: type) -> Callable[[Any], Any]:
        own = look_at(kind, self._devices, to_notebook=self.to_notebook, trial=self._trial)
        parts = self._parts
        if not may_overlap(kind):
            return own or parts.reduce
        copy = overlapping(own or as_usual, parts.overlaps, trial=self._trial)

        def reduce(obj: Any) -> Any:
            reduced = parts.reduce(obj)
            if reduced is NotImplemented:
                reduced = parts.in_memory(obj)
            return copy(obj) if reduced is NotImplemented else reduced

        return reduce


class _PackerOfContainers(_Packer):
    """Refers to lists, dicts and sets that the receivers already have.

    This examines each pickled object, so it is used only if there are such containers.
    """

    def persistent_id(self, obj: Any) -> Any:  # pickle's protocol
        if type(obj) in CONTAINERS and id(obj) in self._parts.containers:
            return self._parts.way_to(obj)
        return None


class _Unpacker(pickle.Unpickler):
    """Finds the objects to which the parcel refers."""

    def persistent_load(self, pid: tuple[str, str, str]) -> Any:  # pickle's protocol
        return find(*pid)


def by_need(names: Iterable[str], space: Mapping[str, Any], used: Container[str] = ()) -> list[str]:
    """Order names so that names needed while unpickling a value come before this value.

    Parameters
    ----------
    names
        The names.
    space
        Their values.
    used
        Names that code in other values uses.
    """
    return sorted(
        names, key=lambda name: (not isinstance(space[name], NEED_NOTHING), name not in used)
    )


def unpack(parcel: Parcel, buffers: list[memoryview] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the values of a parcel, each in memory of this process's own.

    Instances of the notebook's classes may need names that came before them.

    Parameters
    ----------
    parcel
        The parcel.
    buffers
        The parcel's blocks, if they were mapped before.

    Raises
    ------
    NbdistError
        If there is not enough memory.
    """
    if not parcel.names and not parcel.classes:
        return
    buffers = map_blocks(parcel) if buffers is None else list(buffers)
    with _reporting_shortage(parcel):
        stream = parcel.stream or buffers.pop(0)
        for name in parcel.imports:
            importlib.import_module(name)
        cell_sources.put(parcel.sources)
        reload_like_notebook(parcel.reloads)
        # The sender is this cluster's notebook or a rank, on a channel that only they can use.
        unpickler = _Unpacker(io.BytesIO(stream), buffers=iter(buffers))
        for _ in range(parcel.classes):
            unpickler.load()  # which gives the class its new state
        for name in parcel.names:
            with _without_torchs_warnings():
                value = unpickler.load()
            yield name, value


@contextlib.contextmanager
def _without_torchs_warnings() -> Iterator[None]:
    """Hide what torch says of kinds of tensors that it rebuilds: the user has made them before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\b")
        yield


def unpacked(parcel: Parcel, buffers: list[memoryview]) -> dict[str, Any]:
    """Return the values of a parcel, in the notebook.

    Raises
    ------
    NbdistError
        If a value cannot be unpickled here.
    """
    try:
        return dict(unpack(parcel, buffers))
    except NbdistError:
        raise
    except RAISED as err:  # a class may be missing here, or its code may raise
        names = ", ".join(parcel.names)
        raise NbdistError(
            f"{names} cannot be unpickled here: {type(err).__name__}: {err}. If a cell of the "
            "notebook defines its class or function, run that cell first"
        ) from err


def map_blocks(parcel: Parcel, *, copied: bool = False) -> list[memoryview]:
    """Map the large buffers of a parcel while its sender still holds them, or copy them.

    Raises
    ------
    NbdistError
        If there is not enough memory.
    """
    with _reporting_shortage(parcel):
        take = shared_memory.copy if copied else shared_memory.attach
        return [buffer for block in parcel.blocks for buffer in take(block)]


@contextlib.contextmanager
def _reporting_shortage(parcel: Parcel) -> Iterator[None]:
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
    match value:
        case ModuleType():
            return "module"
        case type():
            return "class"
        case FunctionType():
            return "function"
        case _ if type(value).__module__ == "typing":  # List, a TypeVar, Optional[int]
            return "type"
        case _:
            return type(value).__name__
