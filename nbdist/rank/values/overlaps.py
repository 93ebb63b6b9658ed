"""Arrays and storages that share memory, pickled as places in one block. Any process.

Pickle keeps one object one, but not one memory: of an array and its view, or a tensor made from an
array, it makes separate copies. So a first pass over all values *meets* their arrays and storages.
In the second, those that overlap are reduced to places in a block, which is pickled once. What
shares its memory with nothing else is pickled as usual: a small view does not bring a large array.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

SMALL = 1 << 12
"""A view brings all of its array, with which others may come later, if this has so many bytes,"""
SMALL_FACTOR = 2
"""or at most so many times the view's."""
ALIGNED = 16
"""Bytes; a block begins as aligned as its first array."""


class Span(NamedTuple):
    """A range of addresses."""

    start: int
    end: int

    def has(self, other: Span) -> bool:
        """Return whether another range, not an empty one, lies in this one."""
        return self.start <= other.start < other.end <= self.end


class _Block(NamedTuple):
    span: Span
    memory: Any
    """An array over this memory."""


class Overlaps:
    """What shares memory in some values that are pickled together."""

    def __init__(self) -> None:
        # Weak: an array made only for its pickle must not stay.
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self._storages: dict[int, Any] = {}
        self._views = False
        self._blocks: list[_Block] | None = None
        self._spans: dict[int, Span] = {}
        """The memory of each array that was met, by its id, while `_kept` keeps it alive."""
        self._kept: list[Any] = []

    def meet(self, obj: Any) -> None:
        """Take note of an array or a storage, in the first pass."""
        if is_storage(obj):
            self._storages[obj._cdata] = obj
        elif can_be_placed(obj):
            self._arrays[id(obj)] = weakref.ref(obj)
            self._views |= obj.base is not None
            mask = getattr(obj, "_mask", None)  # of a masked array
            if mask is not None and mask.shape:
                self.meet(mask)

    def reduce(self, obj: Any) -> Any:
        """Reduce an array or a storage that shares memory; NotImplemented for others."""
        if self._blocks is None:
            self._blocks = self._settled()
        if not self._blocks:
            return NotImplemented
        span = self._spans.get(id(obj)) or span_of(obj)
        at = bisect_right(self._blocks, ((span.start + 1,),))
        block = self._blocks[at - 1]
        if not at or not block.span.has(span) or obj is block.memory:
            return NotImplemented
        return placed(obj, block.memory, block.span.start)

    def _settled(self) -> list[_Block]:
        """Return the blocks, in the order of their addresses."""
        if not (self._views or (self._arrays and self._storages) or len(self._storages) > 1):
            return []
        arrays = [array for ref in self._arrays.values() if (array := ref()) is not None]
        self._kept = arrays
        self._spans = {id(array): span_of(array) for array in arrays}
        met = [(reach(array, self._spans[id(array)]), array) for array in arrays]
        met += [(span_of(storage), storage) for storage in self._storages.values()]
        met.sort(key=itemgetter(0))
        blocks, group, end = list[_Block](), list[Any](), 0
        for span, obj in met:
            if span.start == span.end:
                continue
            if group and span.start >= end:
                blocks += _block(group, end)
                group = []
            group.append((span, obj))
            end = max(end, span.end) if len(group) > 1 else span.end
        return blocks + _block(group, end)


def _block(group: list[tuple[Span, Any]], end: int) -> list[_Block]:
    """Return the block of objects whose memory overlaps; none for one object by itself."""
    if not group or (len(group) == 1 and not _brings_all(group[0][1])):
        return []
    start = group[0][0].start
    objects = [obj for _, obj in group]
    if not all(map(is_here, objects)):
        return []
    for root in (root_of(obj) for obj in objects if not is_storage(obj)):
        if root.dtype.hasobject:
            return [_Block(Span(start, end), root if root.flags.c_contiguous else root.T)]
    # Never before the page in which the memory begins, so what is read is there.
    start -= start % ALIGNED
    octets: Any = (ctypes.c_ubyte * (end - start)).from_address(start)
    octets.owners = objects
    return [_Block(Span(start, end), sys.modules["numpy"].frombuffer(octets, "u1"))]


def is_storage(obj: Any) -> bool:
    """Return whether an object is the memory of tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.UntypedStorage)


def is_here(obj: Any) -> bool:
    """Return whether the memory of an array or a storage is this process's, not a GPU's."""
    return not is_storage(obj) or obj.device.type == "cpu"


def may_overlap(kind: type) -> bool:
    """Return whether objects of a type are arrays or storages that may share memory.

    Not arrays of the user's own kinds, which may have more state.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is None:
        return False
    if torch is not None and issubclass(kind, torch.UntypedStorage):
        return True
    arrays = numpy.ndarray, numpy.matrix, numpy.recarray, numpy.memmap, numpy.ma.MaskedArray
    return kind in arrays


def overlapping(
    own: Callable[[Any], Any], overlaps: Overlaps, *, trial: bool
) -> Callable[[Any], Any]:
    """Return a reducer that looks for shared memory first, then reduces by `own`."""
    plain = sys.modules["numpy"].ndarray if "numpy" in sys.modules else ()

    def meet(obj: Any) -> Any:
        overlaps.meet(obj)
        if type(obj) is plain and not obj.dtype.hasobject:
            return type, (None,)  # its data need not be pickled to know that they can be
        return own(obj)

    def reduce(obj: Any) -> Any:
        reduced = overlaps.reduce(obj)
        return own(obj) if reduced is NotImplemented else reduced

    return meet if trial else reduce


def as_usual(_obj: object) -> Any:
    """Leave an object to pickle."""
    return NotImplemented


def can_be_placed(array: Any) -> bool:
    """Return whether an array can be rebuilt in a block."""
    root = root_of(array)
    if not root.dtype.hasobject:
        return True
    # The array that owns the objects travels itself. NumPy's strings have no buffer.
    return root.base is None and root.flags.forc and root.dtype.kind != "T"


def root_of(array: Any) -> Any:
    """Return the array at the end of a chain of views."""
    ndarray = sys.modules["numpy"].ndarray
    while isinstance(array.base, ndarray):
        array = array.base
    return array


def span_of(obj: Any) -> Span:
    """Return the memory that an array or a storage uses itself."""
    if is_storage(obj):
        start = obj.data_ptr()
        return Span(start, start + obj.nbytes() if start else 0)
    start = end = obj.__array_interface__["data"][0]
    if not obj.size:
        return Span(start, start)
    if obj.flags.forc:
        return Span(start, start + obj.nbytes)
    for size, step in zip(obj.shape, obj.strides, strict=True):
        start, end = start + min(0, step * (size - 1)), end + max(0, step * (size - 1))
    return Span(start, end + obj.itemsize)


def reach(obj: Any, span: Span) -> Span:
    """Return the memory that travels with an array, which uses `span` itself."""
    if obj.base is None:
        return span
    root = root_of(obj)
    around = span_of(root) if _brings_all(obj) or root.dtype.hasobject else span
    return around if around.has(span) else span


def kept(obj: Any) -> Span | None:
    """Return the memory that receivers of an array or a storage surely have, laid out as here."""
    if is_storage(obj) or (obj.base is None and obj.flags.c_contiguous):
        return span_of(obj) if is_here(obj) else None
    if root_of(obj).dtype.hasobject:
        return None
    if _brings_all(obj):
        return reach(obj, span_of(obj))
    return span_of(obj) if obj.flags.forc else None


def _brings_all(obj: Any) -> bool:
    """Return whether a view brings all of its array, also if it is by itself."""
    if is_storage(obj) or obj.base is None:
        return False
    whole: int = root_of(obj).nbytes
    return bool(obj.nbytes < whole <= max(SMALL, SMALL_FACTOR * obj.nbytes))


def placed(obj: Any, memory: Any, start: int) -> Any:
    """Reduce an array or a storage to its place in `memory`, which begins at the address `start`.

    Arrays are rebuilt by NumPy alone, as in a script without nbdist.
    """
    if is_storage(obj):
        first = obj.data_ptr() - start
        return storage_in, (memory, first, first + obj.nbytes())
    numpy = sys.modules["numpy"]
    kind, ndarray = type(obj), numpy.ndarray
    if kind is not ndarray:
        plain = ndarray.view(obj, ndarray)
        if kind is not numpy.ma.MaskedArray:
            return ndarray.view, (plain, kind)
        mask, fill = numpy.ma.getmask(obj), obj._fill_value
        # Data, mask, dtype, copy, subok, ndmin, fill_value, keep_mask, hard_mask, shrink.
        return kind, (plain, mask, None, False, True, 0, fill, True, obj.hardmask, False)
    offset = obj.__array_interface__["data"][0] - start
    made = ndarray, (obj.shape, obj.dtype, memory, offset, obj.strides)
    # `setflags(write=False)` makes a read-only array.
    return made if obj.flags.writeable else (*made, False, None, None, ndarray.setflags)


def storage_in(memory: Any, first: int, end: int) -> Any:  # a storage
    """Return a storage in the memory of an array."""
    import torch

    return torch.frombuffer(memory[first:end], dtype=torch.uint8).untyped_storage()
