"""Stops a cell on ranks that have not ended it. Hub's thread.

Stopping goes in steps, each only for the ranks that the step before did not end: interrupt the
Python code, free it from collectives, and after a countdown that a person sees, kill the process.
Code that catches the interrupt may save what it has: it is left alone until stop is pressed again.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from nbdist.job.report import said_of
from nbdist.machine.amounts import in_time
from nbdist.wire.messages import Abort, Interrupt

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub
    from nbdist.hub.running.life_cycle import Press
    from nbdist.job.job import Job
    from nbdist.job.output import Output
    from nbdist.wire.messages import Pulse

INTERRUPT_SECONDS = 0.4
"""Python code has this long to react before collectives are broken up."""
FREE_SECONDS = 3.0
"""A freed rank has this long to end its cell before the countdown begins."""
TRACEBACK_SECONDS = 60.0
"""And one that has failed, for its traceback: that takes seconds on a busy machine, or for ever
where an error's own text does."""

CAUGHT_SECONDS = 60.0
"""Code that has caught the interrupt has this long where nobody has pressed stop: after a fault,
or at a time limit."""
KILLED_SECONDS = 5.0
"""How long the death of a killed rank is waited for: a process may wait in the system."""


class Stopping:
    """Stops one cell.

    Parameters
    ----------
    hub, job, output
        The cluster, the cell's job, and its output.
    press
        Says why it is stopped, None after a fault, and when a person wants the stop to be quicker.
    pending
        The ranks that have not ended the cell; a rank is removed when its end is heard.
    """

    def __init__(self, hub: Hub, job: Job, output: Output, press: Press, pending: set[int]) -> None:
        self._hub, self._job, self._output = hub, job, output
        self._press, self._pending = press, pending
        self.over = asyncio.Event()
        """Set when no rank is pending any more."""
        self.killed: set[int] = set()
        """Ranks that were killed at the end of the countdown: their ends are deaths."""

    async def stop(self) -> None:
        """Go through the steps until all ranks have ended the cell."""
        hub, press = self._hub, self._press
        if press.why is None:
            # A fault: the others may be about to end or to fail by themselves.
            await self._ended_within(hub.settings.grace_seconds)
        press.event.clear()
        if press.why is not None:
            self._interrupt()
            await self._ended_within(INTERRUPT_SECONDS)
        press.event.clear()
        await self._free()
        if await self._has_caught():
            press.event.clear()
            self._interrupt(again=True)
            await self._free()
        await self._count_down()

    async def _has_caught(self) -> bool:
        """Wait while code runs that has caught the interrupt; return whether any still does."""
        hub, press = self._hub, self._press
        by_hand = press.why is not None and press.why.by == "interrupt"
        deadline = math.inf if by_hand else hub.loop.time() + CAUGHT_SECONDS
        told: list[int] = []
        while (caught := self._caught()) and not press.event.is_set():
            if hub.loop.time() >= deadline:
                break
            if caught != told:
                self._job.report(
                    "countdown",
                    f"{said_of(caught, 'has caught the interrupt')}, and may be saving something; "
                    f"{self._job.stop_by} again to break that off.",
                )
                told = caught
            await self._ended_within(0.5)
        return bool(caught)

    def _caught(self) -> list[int]:
        """Return the ranks whose code still runs after it was interrupted."""
        return [rank for rank, pulse in self._pulses() if pulse.interrupted]

    async def _free(self) -> None:
        hub, press = self._hub, self._press
        why = "another rank failed" if press.why is None else press.why.text
        deadline = hub.loop.time() + FREE_SECONDS
        self._output.quiet()
        while self._pending and hub.loop.time() < deadline and not press.event.is_set():
            for rank in self._pending:
                hub.send(rank, Abort(self._job.id, why))
            self._interrupt()
            await self._ended_within(0.5)

    def _interrupt(self, *, again: bool = False) -> None:
        for rank in self._pending:
            self._hub.send(rank, Interrupt(self._job.id, again))

    async def _count_down(self) -> None:
        loop, left = self._hub.loop, self._hub.settings.kill_seconds
        patience = loop.time() + TRACEBACK_SECONDS
        self._press.event.clear()
        while self._pending and left > 0 and not self._press.event.is_set():
            showing = self._showing()
            if showing and loop.time() < patience:
                self._tell(f"{said_of(showing, 'has failed')}, and the traceback is being made; ")
                await self._ended_within(0.5)
                continue
            stuck, caught = list(self._pending), self._caught()
            why = "catching each interrupt" if caught == stuck else "being inside a C call"
            self._tell(
                f"{said_of(stuck, 'does not react')}, {why}. In {in_time(left)} "
                f"{said_of(stuck, 'is killed').lower()} and restarted before the next cell; "
            )
            await self._ended_within(min(1.0, left))
            left -= 1
        await self._kill()

    def _showing(self) -> list[int]:
        """Return the ranks that have failed and make their traceback."""
        return [rank for rank, pulse in self._pulses() if pulse.showing]

    def _pulses(self) -> list[tuple[int, Pulse]]:
        """Return what each rank that still runs the cell has told last."""
        pulses = [(rank, self._hub.ranks[rank].pulse) for rank in self._pending]
        return [(rank, pulse) for rank, pulse in pulses if pulse is not None]

    def _tell(self, text: str) -> None:
        self._job.report("countdown", f"{text}{self._job.stop_by} again to kill it now.")

    async def _kill(self) -> None:
        for rank in self._pending:
            self.killed.add(rank)
            self._hub.host.signal(self._hub.ranks[rank].pid, 9)
        if self.killed:
            self._job.report("countdown", f"{said_of(list(self.killed), 'was killed')}.")
        # Another press hurries nothing here: a rank that was killed is lost, and has to be told.
        over = self._hub.loop.create_task(self.over.wait())
        await asyncio.wait({over}, timeout=KILLED_SECONDS)
        over.cancel()
        for rank in list(self._pending):
            self._hub.count_as_dead(rank)

    async def _ended_within(self, seconds: float) -> None:
        """Wait for the cell to be over or the stop to be hurried."""
        over = self._hub.loop.create_task(self.over.wait())
        pressed = self._hub.loop.create_task(self._press.event.wait())
        await asyncio.wait({over, pressed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        pressed.cancel()
