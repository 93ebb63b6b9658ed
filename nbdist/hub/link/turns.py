"""The order of jobs: jobs that share a rank run one after the other, in the order they came."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


class Turns:
    """A queue in which a ticket goes ahead once no earlier one shares a rank with it."""

    def __init__(self) -> None:
        self._line: list[tuple[frozenset[int], asyncio.Future[None], str]] = []

    @asynccontextmanager
    async def take(self, ranks: Iterable[int], who: str) -> AsyncIterator[None]:
        """Wait for these ranks to be free, hold them, and let the next ones go.

        `who` is how those that wait behind are told what they wait for.
        """
        ticket = frozenset(ranks), asyncio.get_running_loop().create_future(), who
        self._line.append(ticket)
        self._admit()
        try:
            await ticket[1]
            yield
        finally:
            self._line.remove(ticket)
            self._admit()

    def ahead(self, ranks: Iterable[int]) -> list[str]:
        """Return who these ranks would have to wait for, the first in line first."""
        wanted = frozenset(ranks)
        return [who for held, _, who in self._line if held & wanted]

    def _admit(self) -> None:
        taken: set[int] = set()
        for ranks, turn, _ in self._line:
            if not ranks & taken and not turn.done():
                turn.set_result(None)
            taken |= ranks
