"""Counts the samples in batches: as many as the loader's sampler says, or unknown (NaN).

A tensor's length alone tells nothing: a list of vectors may be samples or features. So a pass over
torch's `DataLoader` notes the lists of indices that its sampler gives. In other batches samples are
counted only if there are several columns of the same length.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

UNKNOWN = math.nan
DEPTH = 4
"""How deeply nested batches are looked into."""
PLAIN = (str, bytes, int, float)


class Pass:
    """One pass over an iterable, with the number of samples in each of its items.

    Parameters
    ----------
    iterable
        Its `iter` is called here.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._loader, self._numbered = _loader(iterable), type(iterable) is enumerate
        self._noted = None if self._loader is None else _watch(self._loader)
        self.drawn: Any = None
        """The last item's indices in the dataset; None if they are unknown."""
        try:
            self.items: Iterator[Any] = iter(iterable)
        except BaseException:  # whatever the user's `__iter__` raises, also an interrupt
            self.close()
            raise

    def samples(self, item: Any) -> float:
        """Return the number of samples in the item that has just come; NaN if unknown."""
        noted, self.drawn = self._noted, None
        if noted is not None and noted.drawn:
            drawn = noted.drawn.popleft()
            if noted.batched or isinstance(drawn, list):
                self.drawn = drawn
                try:
                    return len(drawn)
                except TypeError:  # an iterator
                    return UNKNOWN
            self.drawn = [drawn]  # one index; the dataset may have a sample or a batch there
        return _without_sampler(self._loader, item[1] if self._numbered else item)

    def close(self) -> None:
        """End the pass: nothing more is noted."""
        if self._noted is not None:
            self._noted.stop()


class _Noted:
    """A sampler that notes what it gives; a loader has it instead of its own for one `iter`."""

    def __init__(self, sampler: Any, *, batched: bool) -> None:
        self._sampler, self.batched = sampler, batched
        self._put_back: Callable[[], None] | None = None
        self._on = False
        self.drawn: deque[Any] = deque()
        """What was given for items that have not come yet: loaders read ahead."""

    def start(self, put_back: Callable[[], None]) -> None:
        """Note what the next `iter` gives, which begins by calling `put_back`."""
        self._put_back, self._on = put_back, True

    def stop(self) -> None:
        self._restore()
        self._on = False
        self.drawn.clear()

    def _restore(self) -> None:
        if self._put_back is not None:
            self._put_back()
            self._put_back = None  # it refers to the loader, whose workers end with it

    def __iter__(self) -> Iterator[Any]:
        self._restore()
        self.drawn.clear()
        return self._noting(iter(self._sampler))  # `iter` now, as it may draw random numbers

    def _noting(self, given: Iterator[Any]) -> Iterator[Any]:
        for each in given:
            if self._on:
                self.drawn.append(each)
            yield each

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


_persistent: WeakKeyDictionary[Any, _Noted] = WeakKeyDictionary()
"""Loaders whose workers persist keep one iterator, and so the sampler of the first pass."""


def _watch(loader: Any) -> _Noted | None:
    """Have a loader's next `iter` note what its sampler gives; None if that tells nothing."""
    out_of_order = loader.num_workers and not getattr(loader, "in_order", True)
    if out_of_order or _is_stream(loader):
        return None
    batched = loader.batch_sampler is not None
    name = "batch_sampler" if batched else "sampler"
    own = vars(loader)  # the loader refuses to have these attributes set
    sampler = own.get(name)
    if sampler is None:  # a class of its own
        return None
    noted = _persistent.get(loader) or _Noted(sampler, batched=batched)
    if loader.num_workers and loader.persistent_workers:
        _persistent[loader] = noted
    noted.start(lambda: own.update({name: sampler}))
    own[name] = noted
    return noted


def at(loader: Any, place: int, batch: Any = None) -> float:
    """Return the samples in the batch at a place of a pass that others make; NaN if unknown."""
    plain = _loader(loader)
    if plain is None or _is_stream(plain) or plain.batch_sampler is None:
        return _without_sampler(plain, batch)
    sampler = plain.batch_sampler
    if type(sampler) is _class("torch.utils.data", "BatchSampler"):
        try:
            left = len(sampler.sampler) - place * sampler.batch_size
        except TypeError:  # nobody knows how many samples it draws
            return UNKNOWN
        return min(sampler.batch_size, left) if left > 0 else UNKNOWN
    if type(sampler) is _class("accelerate.data_loader", "BatchSamplerShard"):
        parts = sampler.num_processes if sampler.split_batches else 1
        if sampler.even_batches and sampler.batch_size:  # it fills the last ones
            return float(sampler.batch_size // parts)
    return _without_sampler(plain, batch)


def _without_sampler(loader: Any, batch: Any) -> float:
    """Return the samples in a batch by what it is; NaN if unknown."""
    if loader is not None and loader.batch_size and loader.drop_last and _is_stream(loader):
        return float(loader.batch_size)
    columns: list[tuple[int, int]] = []
    try:
        clear = _columns([batch], columns)
    except Exception:  # another library's class, whose attributes may raise anything
        return UNKNOWN
    if not columns:
        return UNKNOWN
    length = columns[0][0]
    stacks = _class("torch.utils.data", "default_collate")  # so every column has all samples
    if loader is not None and loader.batch_sampler is not None and loader.collate_fn is stacks:
        return length
    several = clear and len(columns) > 1 and max(axes for _, axes in columns) > 1
    return length if several and all(each == length for each, _ in columns) else UNKNOWN


def _columns(inside: Iterable[Any], found: list[tuple[int, int]], depth: int = DEPTH) -> bool:
    """Collect the columns among these parts of a batch: each one's length and number of axes.

    Returns
    -------
    bool
        Whether all can be columns. Samples have strings, numbers, or several arrays of one kind.
    """
    kinds: list[Any] | None = None if isinstance(inside, Mapping) else []
    clear = True
    for each in inside.values() if isinstance(inside, Mapping) else inside:
        shape = getattr(each, "shape", None)
        if shape is not None:
            axes = len(shape)
            clear = clear and axes > 0
            if axes:
                found.append((int(shape[0]), axes))
            if kinds is not None:
                kind = each.dtype, axes
                clear = clear and kind not in kinds
                kinds.append(kind)
        elif isinstance(each, (list, tuple)) and each and isinstance(each[0], PLAIN):
            found.append((len(each), 1))
            clear = clear and all(isinstance(value, PLAIN) for value in each)
        elif isinstance(each, (list, tuple, Mapping)) and depth:
            clear = _columns(each, found, depth - 1) and clear
        elif each is not None:
            clear = False
    return clear


def _is_stream(loader: Any) -> bool:
    """Whether a dataset has no indices, so that the sampler does not say how much it gives."""
    stream = _class("torch.utils.data", "IterableDataset")
    return stream is not None and isinstance(loader.dataset, stream)


def _loader(iterable: Any) -> Any:
    """Return torch's `DataLoader` that gives exactly the items of `iterable`; else None."""
    shard = _class("accelerate.data_loader", "DataLoaderShard")
    plain = _class("torch.utils.data", "DataLoader")
    if shard is not None and getattr(type(iterable), "__iter__", None) is shard.__iter__:
        iterable = None if iterable.skip_batches else getattr(iterable, "base_dataloader", None)
    kind = type(iterable)
    is_plain = plain is not None and issubclass(kind, plain) and kind.__iter__ is plain.__iter__
    return iterable if is_plain else None


def _class(module: str, name: str) -> Any:
    """Return something of a module, None if the module has not been imported."""
    return getattr(sys.modules.get(module), name, None)
