"""The notebook's names, packed for the ranks, and what the cell says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbdist.job.named_ranks import show_ranks
from nbdist.machine.amounts import in_bytes, in_time
from nbdist.rank.values.parcels import Item
from nbdist.wire import shared_memory

if TYPE_CHECKING:
    from nbdist.wire.parcel_format import Parcel

GRADED = (
    "`{0}` has got other gradients in the notebook, but cells have trained it on the ranks, which "
    "keep theirs. `--bring {0}` replaces it by the notebook's."
)
SLOW_SECONDS = 0.5
MOST_NAMED = 12
"""The most names that are listed one by one."""


@dataclass
class Bringing:
    """Names and values, packed for the ranks."""

    parcel: Parcel
    blocks: shared_memory.Blocks
    items: dict[str, Item]
    """The names, in the order in which the cell uses them."""
    notes: list[str]
    """Messages about names that were changed in the notebook but stay unchanged on the ranks."""
    along: set[str]
    """Of the names, those that are bound only because other values hold their objects."""
    graded: set[str]
    """Models of which the ranks get only the gradients, unless cells there have trained them."""

    def close(self) -> None:
        """Release the shared memory; the ranks keep what they have mapped."""
        self.blocks.close()

    def told(self, bound: Mapping[int, list[str]]) -> list[str]:
        """Return the messages for the user.

        Parameters
        ----------
        bound
            The names that were new to each rank.
        """
        groups: dict[tuple[str, ...], list[int]] = {}
        for rank, names in bound.items():
            if names:
                new = set(names) - self.along
                groups.setdefault(tuple(n for n in self.items if n in new), []).append(rank)
        lines = [
            f"Brought to {_ranks(ranks, len(bound))}: {self._listed(names)}."
            for names, ranks in groups.items()
            if names
        ]
        kept = (n for n in self.items if any(n not in names for names in bound.values()))
        lines += [GRADED.format(name) for name in kept if name in self.graded]
        lines += self.notes
        lines += [
            f"`{item.name}` took {in_time(item.seconds)} to pickle object by object "
            f"({in_bytes(item.objects)}); as an array or a tensor it would take no time."
            for item in self.items.values()
            if item.seconds > SLOW_SECONDS and item.objects > item.size / 2
        ]
        return lines

    def _listed(self, names: tuple[str, ...]) -> str:
        told = [str(self.items[name]) for name in names[:MOST_NAMED]]
        rest = [self.items[name].size for name in names[MOST_NAMED:]]
        if rest:
            told.append(f"and {len(rest)} more ({in_bytes(sum(rest))})")
        return ", ".join(told)


def _ranks(ranks: list[int], of: int) -> str:
    if len(ranks) == of > 1:
        return f"{of} ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {show_ranks(ranks)}"
