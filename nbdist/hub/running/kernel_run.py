"""Follows a job whose cell runs in this process, the kernel, like any other job.

The kernel's main thread runs the cell (`nbdist.rank.kernel_rank`) and calls `begin` and `end` here.
All else is the hub's thread.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nbdist.hub.running.life_cycle import Followed, stopped
from nbdist.job import changes, report
from nbdist.job.output import Output
from nbdist.job.states import INTERRUPT
from nbdist.machine.amounts import in_time
from nbdist.rank.hub_connection import PULSE_SECONDS
from nbdist.wire.messages import Display, Pulse

if TYPE_CHECKING:
    from nbdist.errors import NbdistError
    from nbdist.job.job import Job
    from nbdist.job.states import Stop
    from nbdist.rank.kernel_rank import InsideRunner, Signals
    from nbdist.wire.messages import Done

STUCK_SECONDS = 3.0
"""A cell that has not ended this long after an interrupt is inside a C call."""


class InsideRun(Followed):
    """Follows one cell of this process.

    Parameters
    ----------
    job, output
        As in `nbdist.hub.running.cell_run.Run`.
    timeout
        Seconds after which it is interrupted; None for no limit.
    patience
        Seconds until a wait is reported.
    runner, signals
        The objects that run the cell and interrupt it.
    """

    def __init__(
        self, job: Job, output: str, timeout: float | None, patience: float,
        runner: InsideRunner, signals: Signals,
    ) -> None:  # fmt: skip
        super().__init__(job, Output(job, output), timeout=timeout, patience=patience)
        self._runner, self._signals = runner, signals
        self._loop = asyncio.get_running_loop()
        self._stuck_at = 0.0
        self._ended = False

    async def begin(self) -> None:
        """Start to follow the cell."""
        self._job.parts = {0: (0, None)}
        self._output.begin()
        self._loop.add_reader(self._signals.socket, self._on_signal)
        self._begin()
        self._following.append(self._loop.create_task(self._look()))

    async def end(self, done: Done, seconds: float) -> None:
        """Report how the cell has ended, after its output was shown."""
        job = self._job
        self._ended = True
        self._loop.remove_reader(self._signals.socket)
        self._follow_no_more()
        job.seconds, job.parts = seconds, {0: (0, max(0, done.log_end))}
        if self._stuck_at:
            text = f"It has reacted after {in_time(time.time() - self._stuck_at)}."
            job.report("countdown", text, warns=False)
        await self._watch.show_rest()
        job.end(self._outcome(done))

    def _outcome(self, done: Done) -> NbdistError | None:
        job = self._job
        if done.fault is None:
            job.state = "done"
            return None
        job.errors[0] = done.fault
        if self._press.why is not None:
            return stopped(job, self._press.why)
        job.state = "failed"
        return report.failure(job)

    # -- while it runs -------------------------------------------------------------------------

    def hear(self, message: Display | Pulse) -> None:
        """Receive the cell's displays and its final bars."""
        changes.happened()
        match message:
            case Display():
                self._output.display(message)
                self._watch.wake()
            case _:
                self._job.pulses[0] = message

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            self._job.pulses[0] = self._runner.doing(self._job.id)

    def press(self, why: Stop) -> None:
        """Interrupt the cell."""
        if not self._ended:
            self._press.press(why)
            self._runner.interrupt(self._job.id)

    def _on_signal(self) -> None:
        if self._signals.interrupted():
            self._press.press(INTERRUPT)
            if self._runner.job != self._job.id:  # the cell has not begun, and must not begin
                self._runner.interrupt(self._job.id)
            stuck = self._loop.call_later(STUCK_SECONDS, self._tell_stuck, time.time())
            self._following.append(stuck)

    def _tell_stuck(self, since: float) -> None:
        if not self._stuck_at:
            self._stuck_at = since
            self._job.report(
                "countdown",
                "The cell does not react: it is inside a C call, where XLA compiles or waits for a "
                "device. The cell stops when that call returns. Only a restart of the kernel can "
                "stop the cell sooner, and loses the notebook's variables.",
            )

    def running(self) -> dict[int, Pulse | None]:
        """See `nbdist.hub.running.watch.Watched`."""
        return {} if self._ended else {0: self._job.pulses.get(0)}

    def ended(self) -> set[int]:
        """See `nbdist.hub.running.watch.Watched`."""
        return {0} if self._ended else set()
