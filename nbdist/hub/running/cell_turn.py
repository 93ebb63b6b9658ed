"""Waits for a cell's turn: its ranks are free, and the cluster is complete. Hub's thread."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from nbdist.hub.asking import rank_equality
from nbdist.hub.link import forming
from nbdist.hub.running.life_cycle import Stopped
from nbdist.job import changes
from nbdist.job.named_ranks import name_ranks
from nbdist.machine.amounts import in_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nbdist.hub.hub import Hub
    from nbdist.hub.running.life_cycle import Press
    from nbdist.job.job import Job

START_PATIENCE = 10.0
"""A cell that waits longer for its ranks says so."""
STARTING = "starting"


def waits_for(ranks: list[int]) -> str:
    """Say that a cell waits for these ranks, or for what all of them do together."""
    if not ranks:
        return "Waits for the ranks, which form their process group."
    return f"Waits for {name_ranks(ranks)}, which {'starts' if len(ranks) == 1 else 'start'}."


class Turn:
    """Waits for the turn of one job.

    Parameters
    ----------
    hub, job
        The cluster, and the job that is to run on it.
    press
        Ends the wait.
    """

    def __init__(self, hub: Hub, job: Job, press: Press) -> None:
        self._hub, self._job, self._press = hub, job, press
        self._waiting: asyncio.Task[Any] | None = None

    def give_up(self) -> None:
        """Wait no longer, if the job still waits."""
        if self._waiting is not None:
            self._waiting.cancel()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait until the ranks are free, and hold them."""
        hub, job = self._hub, self._job
        changes.happened()
        self._tell_of_queue()
        try:
            async with AsyncExitStack() as held:
                with self._until_given_up():
                    turn = hub.turns.take(job.ranks, f"job {job.id} (In [{job.number}])")
                    await held.enter_async_context(turn)
                if job.waits_for:
                    self._tell_of_turn()
                yield
        finally:
            hub.leave(job.id)

    @contextmanager
    def _until_given_up(self) -> Iterator[None]:
        self._waiting = asyncio.current_task()
        try:
            if self._press.why is not None:  # pressed before this task had begun
                raise Stopped  # noqa: TRY301
            yield
        except (Stopped, asyncio.CancelledError):
            if self._job.waits_for:
                self._job.notes.append(
                    f"The cell had not begun: it waited for {_all_of(self._job)}."
                )
            raise
        finally:
            self._waiting = None

    def _tell_of_queue(self) -> None:
        job = self._job
        job.waits_for = self._hub.turns.ahead(job.ranks)
        if job.waits_for:
            self._tell(f"The ranks are busy with {_all_of(job)}: this cell waits for its turn.")

    def _tell(self, text: str) -> None:
        """Say what the job waits for, and how to end that."""
        how = self._job.stop_by if self._job.background else "An interrupt"
        text = f"{text} {how} takes only this cell out of the queue."
        self._job.tell("queue", text, warns=False)

    def _tell_of_turn(self) -> None:
        waited = in_time(time.time() - self._job.created)
        text = f"The cell waited {waited} for {_all_of(self._job)}."
        self._job.tell("queue", text, warns=False)

    # -- a whole cluster -----------------------------------------------------------------------

    async def mend(self) -> None:
        """Make the cluster whole before the cell, holding all its ranks while that takes."""
        hub, job = self._hub, self._job
        while True:
            async with hub.mending:
                if not self._must_wait():
                    if hub.stale and not hub.begun:
                        with self._says_that_it_waits():
                            await forming.heal(hub, lambda text: job.tell(text, text))
                    for note in forming.drain(hub):
                        job.tell(note, note)
                    if hub.uncompared and not hub.begun:
                        await self._compare()
                    if not hub.uncompared:
                        hub.failed.clear()
                    hub.begin(job.id)
                    return
            await self._wait_for_others()

    @contextmanager
    def _says_that_it_waits(self) -> Iterator[None]:
        """Say for which ranks the cell waits if they take long, until they are there."""

        def say() -> None:
            late = [rank.rank for rank in self._hub.ranks.values() if rank.state == "starting"]
            self._job.tell(STARTING, waits_for(late), warns=False)

        timer = self._hub.loop.call_later(START_PATIENCE, say)
        try:
            yield
        finally:
            timer.cancel()
            if STARTING in self._job.told_of:
                self._job.tell(STARTING, "")

    def _must_wait(self) -> bool:
        """Whether ranks or their group are to be made anew, and others are at work in it."""
        hub = self._hub
        dead = any(not hub.ranks[rank].sound for rank in self._job.ranks)
        return hub.stale and bool(hub.begun) and (dead or hub.backend != "none")

    async def _wait_for_others(self) -> None:
        """Wait for the jobs that still use the group, which then can be renewed for all ranks."""
        job, hub = self._job, self._hub
        job.waits_for = [f"job {each}" for each in sorted(hub.begun)]
        self._tell(
            "The process group must be re-created after the last fault, and other ranks are still "
            f"at work in it: this cell waits for {_all_of(job)}."
        )
        with self._until_given_up():
            await hub.none_begun.wait()
        self._tell_of_turn()

    async def _compare(self) -> None:
        """Compare what could not be when a job had ended on some of the ranks."""
        job, pressed = self._job, self._press.event

        def tell(text: str) -> None:
            job.tell(text, text, warns=False)

        for note in await rank_equality.compare(self._hub, tell, pressed):
            job.tell(note, note)


def _all_of(job: Job) -> str:
    first, *rest = job.waits_for
    return f"{first} and {len(rest)} more" if rest else first
