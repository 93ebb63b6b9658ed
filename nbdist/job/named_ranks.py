"""Ranks as messages name them: ``rank 0``, ``ranks 0,2-4``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def name_ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """Format ranks with the word before them: ``rank 0``, ``ranks 0,2-4``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {show_ranks(ranks)}"


def show_ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """Format ranks briefly: ``0,2-4``."""
    return ",".join(_spans(sorted(ranks)))


def _spans(ranks: list[int]) -> Iterator[str]:
    start = 0
    for i, rank in enumerate(ranks):
        if i + 1 == len(ranks) or ranks[i + 1] != rank + 1:
            first = ranks[start]
            yield f"{first}" if first == rank else f"{first}-{rank}"
            start = i + 1
