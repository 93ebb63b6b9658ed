"""The order of jobs: jobs that share a rank run one after the other, in the order they came."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


class Turns:
    """A queue in which a job runs once no earlier job shares a rank with it."""

    def __init__(self) -> None:
        self._line: list[tuple[frozenset[int], asyncio.Future[None], str]] = []

    @asynccontextmanager
    async def take(self, ranks: Iterable[int], who: str) -> AsyncIterator[None]:
        """Wait until these ranks are free, hold them, and release them afterwards.

        `who` names the holder in messages to jobs that wait.
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
        """Return the names of the jobs for which these ranks must wait, first come first."""
        wanted = frozenset(ranks)
        return [who for held, _, who in self._line if held & wanted]

    def _admit(self) -> None:
        taken: set[int] = set()
        for ranks, turn, _ in self._line:
            if not ranks & taken and not turn.done():
                turn.set_result(None)
            taken |= ranks
