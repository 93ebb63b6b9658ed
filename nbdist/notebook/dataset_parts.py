"""Finds out which part of a dataset a loader has read, however the dataset is cut and put together.

Any process; the thread that measures.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def drawn_part(dataset: Any, drawn: Iterable[Any]) -> float | None:
    """Return the fraction of a dataset's files that was read; None if it is unknown.

    Samples that were drawn twice count once, and a `Subset` is a part of what it was made from.

    Parameters
    ----------
    dataset
        The dataset of the loader.
    drawn
        The indices in each batch.
    """
    try:
        read = {_found(dataset, index) for index in chain.from_iterable(drawn)}
        whole = sum(len(each) for each in _whole(dataset).values())
    except (TypeError, ValueError, IndexError):  # other indices than numbers, no length
        return None
    return len(read) / whole if whole else None


def whole_length(dataset: Any) -> int | None:
    """Return the number of samples in what a dataset was made from; None if it is unknown."""
    try:
        return sum(len(each) for each in _whole(dataset).values()) or None
    except TypeError:
        return None


def _found(dataset: Any, index: Any) -> tuple[int, int]:
    """Return the innermost dataset that has a sample, by its id, and the sample's index there."""
    while True:
        index = int(index) + (len(dataset) if index < 0 else 0)
        if _is("Subset", dataset):
            index, dataset = dataset.indices[index], dataset.dataset
        elif _is("ConcatDataset", dataset):
            which = bisect_right(dataset.cumulative_sizes, index)
            index -= dataset.cumulative_sizes[which - 1] if which else 0
            dataset = dataset.datasets[which]
        else:
            return id(dataset), index


def _whole(dataset: Any) -> dict[int, Any]:
    """Return the innermost datasets by their ids."""
    if _is("Subset", dataset):
        return _whole(dataset.dataset)
    if _is("ConcatDataset", dataset):
        return {key: each for part in dataset.datasets for key, each in _whole(part).items()}
    return {id(dataset): dataset}


def _is(name: str, dataset: Any) -> bool:
    kind = getattr(sys.modules.get("torch.utils.data"), name, None)
    return kind is not None and isinstance(dataset, kind)
