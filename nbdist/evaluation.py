"""Exact evaluation: every sample once, whatever the numbers of samples and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import Sampler

from nbdist.collectives import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized


class ShardedBatchSampler(Sampler[list[int]]):
    """Deals the batches of a data set out to the ranks: one each in turn, none twice.

    `torch.utils.data.DistributedSampler` gives all ranks the same number of samples, some of them
    twice; an accuracy over these is not that of the data set. Here a rank may have a batch less
    than others, or none at all. Batches are those that one rank alone would make, so that all ranks
    together compute exactly what it does.

    A rank may be through before others: evaluate ``model.module``, not the
    `DistributedDataParallel` around it, which sends buffers in each forward and would wait.

    Parameters
    ----------
    data
        The data set, or anything with a length.
    batch_size
        Samples in a batch; the last one may be smaller.
    num_replicas, rank
        As those of `DistributedSampler`: the ranks there are and which one this is. By default
        those of the process that goes through the batches, wherever the sampler was made.

    Examples
    --------
    >>> loader = DataLoader(test_set, batch_sampler=ShardedBatchSampler(test_set, batch_size=64))
    """

    def __init__(
        self,
        data: Sized,
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self._num_replicas, self._rank = num_replicas, rank
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank must be from 0 to {self.num_replicas - 1}, not {self.rank}")
        self.data, self.batch_size = data, batch_size

    @property
    def num_replicas(self) -> int:
        """The number of ranks."""
        return place()[1] if self._num_replicas is None else self._num_replicas

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return place()[0] if self._rank is None else self._rank

    def __iter__(self) -> Iterator[list[int]]:
        """Go through this rank's batches, each a list of indices."""
        size, count = self.batch_size, len(self.data)
        for start in range(self.rank * size, count, self.num_replicas * size):
            yield list(range(start, min(start + size, count)))

    def __len__(self) -> int:
        """Return the number of this rank's batches."""
        step = self.batch_size * self.num_replicas
        return len(range(self.rank * self.batch_size, len(self.data), step))
