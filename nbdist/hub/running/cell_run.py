"""One job from its turn to its end: sent to the ranks, watched, and stopped if it must be.

Stopping goes in steps, each only for the ranks the one before did not end: interrupt the Python
code, free it from collectives, and after a countdown that a person sees, kill the process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.hub.asking import names_sent, rank_equality
from nbdist.hub.hub import Hub, JobListener
from nbdist.hub.link import forming
from nbdist.hub.running.after_failure import settle
from nbdist.hub.running.watch import Watch
from nbdist.job import changes, report
from nbdist.job.job import Death, Job, name_ranks
from nbdist.job.job_states import INTERRUPT, Stop
from nbdist.job.output import Output
from nbdist.job.report import said_of
from nbdist.launchers.host.engines import working_directory
from nbdist.machine.amounts import in_time
from nbdist.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbdist.wire.messages import Display, Done, Pulse

INTERRUPT_SECONDS = 0.4
"""Python code has this long to react before collectives are broken up."""
FREE_SECONDS = 3.0
"""A freed rank has this long to end its cell before the countdown begins."""
TRACEBACK_SECONDS = 60.0
"""And one that has failed, for its traceback: that takes seconds on a busy machine, or for ever
where an error's own text does."""


START_PATIENCE = 10.0
"""A cell that waits longer for its ranks says so."""
STARTING = "starting"


def waits_for(ranks: list[int]) -> str:
    """Say that a cell waits for these ranks, or for what all of them do together."""
    if not ranks:
        return "Waits for the ranks, which form their process group."
    return f"Waits for {name_ranks(ranks)}, which {'starts' if len(ranks) == 1 else 'start'}."


class Run(JobListener):
    """Runs one job on the hub's thread."""

    def __init__(
        self,
        hub: Hub,
        job: Job,
        *,
        output: str = "rank0",
        arguments: Sequence[str] = (),
        autoreload: str = "",
        timeout: float | None = None,
        bringing: names_sent.Packed | None = None,
        returns: Sequence[str] = (),
    ) -> None:
        self._hub, self._job = hub, job
        self._bringing, self._returns = bringing, list(returns)
        self._autoreload, self._timeout = autoreload, timeout
        self._arguments = list(arguments)
        self._pending: set[int] = set(job.ranks)
        self._unformed = False
        self._output = Output(job, output)
        others = [rank for rank in hub.ranks if rank not in job.ranks]
        self._watch = Watch(job, self._output, hub.settings.hang_seconds, self, others)
        self._over = asyncio.Event()
        self._trouble = asyncio.Event()
        self._pressed = asyncio.Event()
        self._killed: set[int] = set()
        self._waiting: asyncio.Task[None] | None = None
        self._why: Stop | None = None

    # -- what the hub hears --------------------------------------------------------------------

    def done(self, rank: int, done: Done) -> None:
        """Note the end of a rank's cell."""
        if rank not in self._pending:
            return
        self._pending.discard(rank)
        if not done.logged:
            self._job.unlogged.add(rank)
        self._close_part(rank, done.log_end)
        self._unformed |= not done.formed
        if done.fault is not None:
            self._job.errors[rank] = done.fault
            self._trouble.set()
        if not self._pending:
            self._over.set()
            self._trouble.set()

    def display(self, rank: int, display: Display) -> None:
        """Pass on a rich display of the shown rank."""
        del rank
        self._output.display(display)
        self._watch.wake()

    def pulsed(self, rank: int, pulse: Pulse) -> None:
        """Note what a rank is doing."""
        # The last one, and the end, come by another socket: they may overtake the one before them.
        if rank in self._pending:
            self._hub.ranks[rank].pulse = pulse
        if rank not in self._job.pulses or not self._job.pulses[rank].paces:
            self._job.pulses[rank] = pulse

    def died(self, death: Death) -> None:
        """Note the death of a rank; it matters if its cell was not over."""
        if death.rank in self._pending:
            self._pending.discard(death.rank)
            log = self._job.log(death.rank)
            self._close_part(death.rank, log.stat().st_size if log.exists() else -1)
            asked = death.rank in self._killed
            self._job.errors[death.rank] = Death(
                death.rank, death.pid, death.signum, death.code, death.out_of_memory, death.at,
                death.line, asked,
            )  # fmt: skip
            self._trouble.set()
            if not self._pending:
                self._over.set()

    def _close_part(self, rank: int, end: int) -> None:
        begin, _ = self._job.parts[rank]
        if 0 <= end < begin:
            begin = 0  # somebody has cut the log meanwhile, to make room
        end = max(begin, end)
        self._job.parts[rank] = begin, end
        self._hub.ranks[rank].log_end = end

    def press(self, why: Stop) -> None:
        """Stop the job, or hurry a stop that is under way. Hub's thread."""
        self._why = self._why or why
        self._trouble.set()
        self._pressed.set()
        if self._waiting is not None:
            self._waiting.cancel()

    # -- its life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take the job through; it has ended when this returns, whatever happened."""
        job = self._job
        error: NbdistError | None = None
        self._waiting = asyncio.current_task()
        changes.happened()
        self._tell_of_queue()
        try:
            if self._why:  # pressed before this task had begun
                raise asyncio.CancelledError  # noqa: TRY301
            async with self._hub.turns.take(job.ranks, f"job {job.id} (In [{job.number}])"):
                self._waiting = None
                if job.waits_for:
                    self._tell_of_turn()
                error = await self._run()
        except asyncio.CancelledError:
            if job.waits_for:
                job.notes.append(f"It had not begun: it waited for {_all_of(job)}.")
            why = self._why or INTERRUPT
            job.state, error = why.state, report.interrupted(job, why)
        except NbdistError as err:
            job.state, error = "failed", err
        except Exception as err:  # a fault of ours must end the job, not hang it
            job.state = "failed"
            error = NbdistError(f"nbdist itself failed: {type(err).__name__}: {err}")
            error.__cause__ = err
        finally:
            self._hub.leave(job.id)
            if self._bringing is not None:
                self._bringing.close()
        job.end(error)

    def _tell_of_queue(self) -> None:
        job = self._job
        job.waits_for = self._hub.turns.ahead(job.ranks)
        if job.waits_for:
            how = job.stop_by if job.background else "An interrupt"
            text = (
                f"Its ranks are busy with {_all_of(job)}: this waits for its turn. "
                f"{how} takes only this cell out of the queue."
            )
            job.tell("queue", text, warns=False)

    def _tell_of_turn(self) -> None:
        waited = in_time(time.time() - self._job.created)
        text = f"It waited {waited} for {_all_of(self._job)}."
        self._job.tell("queue", text, warns=False)

    async def _run(self) -> NbdistError | None:
        job, hub = self._job, self._hub
        await self._heal()
        await self._bring()
        if self._why:
            job.state = self._why.state
            return report.interrupted(job, self._why)
        began = time.monotonic()
        job.began, job.state = time.time(), "running"
        hub.running[job.id] = self
        watch = hub.loop.create_task(self._watch.run())
        if self._timeout is not None:
            late = Stop("timeout", self._timeout)
            timer = hub.loop.call_later(self._timeout, self.press, late)
        try:
            self._send_cell()
            await self._trouble.wait()
            if self._pending:
                await self._stop()
        finally:
            watch.cancel()
            if self._timeout is not None:
                timer.cancel()
            del hub.running[job.id]
        job.seconds = time.monotonic() - began
        hub.stale |= self._unformed
        await self._watch.show_rest()
        if job.errors or self._why:
            # Code that catches an interrupt ends well, and leaves ranks at different points.
            self._pressed.clear()
            error = await settle(hub, job, self._why, self._pressed)
            if error is not None:
                return error
        if self._returns:
            shown = job.ranks[0]
            job.returned[shown] = await names_sent.ask_for(hub.line, shown, self._returns)
        job.state = "done"
        return None

    async def _heal(self) -> None:
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
        dead = any(not hub.ranks[rank].alive for rank in self._job.ranks)
        return hub.stale and bool(hub.begun) and (dead or hub.backend != "none")

    async def _wait_for_others(self) -> None:
        """Wait for the jobs that still use the group, which then can be renewed for all ranks."""
        job, hub = self._job, self._hub
        job.waits_for = [f"job {each}" for each in sorted(hub.begun)]
        how = job.stop_by if job.background else "An interrupt"
        job.tell(
            "queue",
            "The process group must be re-created after the last fault, and other ranks are still "
            f"at work in it: this waits for {_all_of(job)}. {how} takes only this cell out of the "
            "queue.",
            warns=False,
        )
        self._waiting = asyncio.current_task()
        await hub.none_begun.wait()
        self._waiting = None
        self._tell_of_turn()

    async def _compare(self) -> None:
        """Compare what could not be when a job had ended on some of the ranks."""
        tell = self._job.tell
        for note in await rank_equality.compare(self._hub, self._tell_of_work, self._pressed):
            tell(note, note)

    def _tell_of_work(self, text: str) -> None:
        self._job.tell(text, text, warns=False)

    async def _bring(self) -> None:
        """Hand over names, unless that is interrupted."""
        if self._bringing is None:
            return
        loop, ranks = self._hub.loop, self._job.ranks
        run = self._message()
        work = loop.create_task(names_sent.hand_over(self._hub, ranks, self._bringing, run))
        pressed = loop.create_task(self._pressed.wait())
        await asyncio.wait({work, pressed}, return_when=asyncio.FIRST_COMPLETED)
        pressed.cancel()
        if self._why:
            work.cancel()
            return
        for line in await work:
            self._job.tell(line, line)

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
            parcel=self._bringing.parcel.id if self._bringing else "",
            began=job.began or time.time(),
        )

    def running(self) -> dict[int, Pulse | None]:
        """See `nbdist.hub.running.watch.Watched`."""
        return {rank: self._hub.ranks[rank].pulse for rank in self._pending}

    def ended(self) -> set[int]:
        """See `nbdist.hub.running.watch.Watched`."""
        return set(self._job.ranks) - self._pending

    def failed(self) -> bool:
        """See `nbdist.hub.running.watch.Watched`."""
        return bool(self._why)

    def looked(self) -> None:
        """See `nbdist.hub.running.watch.Watched`."""

    # -- stopping ------------------------------------------------------------------------------

    async def _stop(self) -> None:
        hub, job = self._hub, self._job
        if not self._why:
            # A fault: the others may be about to end or to fail by themselves.
            await self._ended_within(hub.settings.grace_seconds)
        self._pressed.clear()
        if self._why:
            self._interrupt()
            await self._ended_within(INTERRUPT_SECONDS)
        why = self._why.text if self._why else "another rank failed"
        deadline = hub.loop.time() + FREE_SECONDS
        self._pressed.clear()
        self._output.quiet()
        while self._pending and hub.loop.time() < deadline and not self._pressed.is_set():
            for rank in self._pending:
                hub.send(rank, messages.Abort(job.id, why))
            self._interrupt()
            await self._ended_within(0.5)
        await self._count_down()

    def _interrupt(self) -> None:
        for rank in self._pending:
            self._hub.send(rank, messages.Interrupt(self._job.id))

    async def _count_down(self) -> None:
        hub, left = self._hub, self._hub.settings.kill_seconds
        patience = hub.loop.time() + TRACEBACK_SECONDS
        self._pressed.clear()
        while self._pending and left > 0 and not self._pressed.is_set():
            showing = [rank for rank, pulse in self.running().items() if pulse and pulse.showing]
            if showing and hub.loop.time() < patience:
                self._job.tell(
                    "countdown",
                    f"{said_of(showing, 'has failed')}, and the traceback is being made; "
                    f"{self._job.stop_by} again to kill it now.",
                )
                await self._ended_within(0.5)
                continue
            stuck = list(self._pending)
            self._job.tell(
                "countdown",
                f"{said_of(stuck, 'does not react')}, being inside a C call. In {in_time(left)} "
                f"{said_of(stuck, 'is killed').lower()} and restarted before the next cell; "
                f"{self._job.stop_by} again to kill it now.",
            )
            await self._ended_within(min(1.0, left))
            left -= 1
        for rank in self._pending:
            self._killed.add(rank)
            self._hub.host.signal(self._hub.ranks[rank].pid, 9)
        if self._killed:
            self._job.tell("countdown", f"{said_of(list(self._killed), 'was killed')}.")
        await self._ended_within(5.0)

    async def _ended_within(self, seconds: float) -> None:
        """Wait for the job to be over or the stop to be hurried."""
        over = self._hub.loop.create_task(self._over.wait())
        pressed = self._hub.loop.create_task(self._pressed.wait())
        await asyncio.wait({over, pressed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        pressed.cancel()


def _all_of(job: Job) -> str:
    first, *rest = job.waits_for
    return f"{first} and {len(rest)} more" if rest else first
