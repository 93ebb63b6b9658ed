"""Runs one cell on a cluster's ranks: sends the cell at its turn, follows it to its end.

Hub's thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.hub.asking import names_sent
from nbdist.hub.running.after_failure import settle
from nbdist.hub.running.cell_stop import Stopping
from nbdist.hub.running.cell_turn import Turn
from nbdist.hub.running.life_cycle import JobRun
from nbdist.job.deaths import Death
from nbdist.job.job import Job
from nbdist.job.output import Output
from nbdist.launchers.host.engines import working_directory
from nbdist.wire import messages
from nbdist.wire.rank_calls import TryNames

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from nbdist.errors import NbdistError
    from nbdist.hub.hub import Hub
    from nbdist.job.states import Stop
    from nbdist.wire.messages import Display, Done, Pulse


class Run(JobRun):
    """Runs one job on a cluster; it is the `nbdist.hub.hub.JobListener` of that job."""

    def __init__(
        self,
        hub: Hub,
        job: Job,
        *,
        output: str = "rank0",
        arguments: Sequence[str] = (),
        autoreload: str = "",
        futures: int = 0,
        timeout: float | None = None,
        bringing: names_sent.Packed | None = None,
        returns: Sequence[str] = (),
        kept: Sequence[str] = (),
    ) -> None:
        others = [rank for rank in hub.ranks if rank not in job.ranks]
        shown = Output(job, output)
        patience = hub.settings.hang_seconds
        super().__init__(job, shown, timeout=timeout, patience=patience, outside=others)
        self._hub, self._bringing, self._returns = hub, bringing, list(returns)
        self._kept = list(kept)
        self._arguments, self._autoreload = list(arguments), autoreload
        self._futures = futures
        self._untold = [] if bringing is None else [*bringing.notes]
        """What is to be said also if the cell does not get to run; no other cell says it."""
        self._pending: set[int] = set(job.ranks)
        self._unformed = False
        self._trouble = asyncio.Event()
        """Set when there is more to do than to wait: all is over, or something is wrong."""
        self._stopping = Stopping(hub, job, shown, self._press, self._pending)
        self._cell_turn = Turn(hub, job, self._press)

    # -- what the hub hears --------------------------------------------------------------------

    def done(self, rank: int, done: Done) -> None:
        """Record the end of a rank's cell."""
        if rank not in self._pending or rank in self._stopping.killed:
            return
        if not done.logged:
            self._job.unlogged.add(rank)
        self._unformed |= not done.formed
        if done.fault is not None:
            self._job.errors[rank] = done.fault
            self._trouble.set()
        self._close_part(rank, done.log_end)

    def display(self, rank: int, display: Display) -> None:
        """Forward a rich display of the shown rank."""
        del rank
        self._output.display(display)
        self._watch.wake()

    def pulsed(self, rank: int, pulse: Pulse) -> None:
        """Record what a rank is doing."""
        # The last one, and the end, come by another socket: they may overtake the one before them.
        if rank in self._pending:
            self._hub.ranks[rank].pulse = pulse
        if rank not in self._job.pulses or not self._job.pulses[rank].paces:
            self._job.pulses[rank] = pulse

    def died(self, death: Death) -> None:
        """Record the death of a rank, which matters if its cell had not ended."""
        if death.rank not in self._pending:
            return
        asked = death.rank in self._stopping.killed
        self._job.errors[death.rank] = Death(
            death.rank, death.pid, death.signum, death.code, death.out_of_memory, death.at,
            death.line, asked,
        )  # fmt: skip
        self._trouble.set()
        log = self._job.log(death.rank)
        self._close_part(death.rank, log.stat().st_size if log.exists() else -1)

    def _close_part(self, rank: int, end: int) -> None:
        """Note where the output of a rank ends, for which the cell is over."""
        begin, _ = self._job.parts[rank]
        if 0 <= end < begin:
            begin = 0  # the log was truncated meanwhile to free space
        end = max(begin, end)
        self._job.parts[rank] = begin, end
        self._hub.ranks[rank].log_end = end
        self._pending.discard(rank)
        if not self._pending:
            self._stopping.over.set()
            self._trouble.set()

    def press(self, why: Stop) -> None:
        """Stop the job, or hurry a stop that is under way; what has failed stays a failure."""
        if self._job.errors and why.by in ("interrupt", "timeout"):
            if why.by == "interrupt":
                self._press.event.set()
            return
        self._press.press(why)
        self._trouble.set()
        self._cell_turn.give_up()

    def running(self) -> dict[int, Pulse | None]:
        """See `nbdist.hub.running.watch.Watched`."""
        return {rank: self._hub.ranks[rank].pulse for rank in self._pending}

    def ended(self) -> set[int]:
        """See `nbdist.hub.running.watch.Watched`."""
        return set(self._job.ranks) - self._pending

    # -- its life ------------------------------------------------------------------------------

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return self._cell_turn.taken()

    async def _prepare(self) -> None:
        await self._cell_turn.mend()
        if self._kept:
            shown = self._job.ranks[0]
            asking = self._hub.call(shown, TryNames(self._kept), timeout=names_sent.LONG_SECONDS)
            refused = await self._press.unless(asking)
            if refused:
                told = names_sent.not_returned(refused, shown)
                raise UsageError(f"{told}\nNothing was brought or started.")
        if self._bringing is not None:
            ranks, run = self._job.ranks, self._message()
            work = names_sent.hand_over(self._hub, ranks, self._bringing, run)
            lines = await self._press.unless(work)
            self._untold.clear()
            for line in lines:
                self._job.tell(line, line)

    async def _work(self) -> None:
        hub, job = self._hub, self._job
        hub.running[job.id] = self
        try:
            self._send_cell()
            await self._trouble.wait()
            if self._pending:
                await self._stopping.stop()
        finally:
            del hub.running[job.id]
        hub.stale |= self._unformed

    def _send_cell(self) -> None:
        job, hub = self._job, self._hub
        job.folder = hub.logs.place([hub.ranks[rank] for rank in job.ranks], hub.ranks.values())
        job.parts = {rank: (hub.ranks[rank].log_end, None) for rank in job.ranks}
        self._output.begin()
        for rank in job.ranks:
            hub.ranks[rank].state = "busy"
            hub.ranks[rank].pulse = None
        hub.line.send_cell(job.ranks, self._message())

    def _message(self) -> messages.Run:
        job, hub = self._job, self._hub
        return messages.Run(
            job=job.id,
            code=job.code,
            filename_line=job.lines,
            execution_count=job.number,
            logs=str(job.folder),
            shown=job.ranks[0],
            cwd=working_directory(),
            sys_path=sys.path,
            environ={**hub.host.environ_changes(), **hub.environ},
            arguments=self._arguments,
            autoreload=self._autoreload,
            futures=self._futures,
            parcel=self._bringing.parcel.id if self._bringing else "",
            began=job.began or time.time(),
        )

    async def _outcome(self) -> NbdistError | None:
        hub, job, press = self._hub, self._job, self._press
        if job.errors or press.why is not None:
            # Code that catches an interrupt succeeds, but leaves ranks at different points.
            press.event.clear()
            error = await settle(hub, job, press.why, press.event)
            if error is not None:
                return error
        if self._returns:
            shown = job.ranks[0]
            job.returned[shown] = await names_sent.ask_for(hub.line, shown, self._returns)
        job.state = "done"
        return None

    def _clear_away(self) -> None:
        if self._bringing is not None:
            self._bringing.close()
        for note in self._untold:
            self._job.tell(note, note)
