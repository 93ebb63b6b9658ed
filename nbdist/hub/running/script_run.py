"""Runs a job that is a script: starts its launcher, and follows it like any other job.

Everything here runs on the hub's thread. The launcher is a child of the warm process, the ranks
are the launcher's; they say themselves how they are, and the launcher's end is the job's.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nbdist.errors import LaunchError, NbdistError
from nbdist.hub.asking import names_sent, stacks
from nbdist.hub.link.agent_connections import Line
from nbdist.hub.running.life_cycle import JobRun
from nbdist.hub.running.reachable_hosts import reach
from nbdist.hub.running.script_ends import Ends
from nbdist.hub.running.script_launch import PROGRAM, ScriptLaunch
from nbdist.hub.running.script_outcome import Outcome, ended_well
from nbdist.job.states import WITH_CLUSTER, Stop
from nbdist.launchers.host.protocol import Died, Refused, Started
from nbdist.launchers.scripts.launcher import launcher
from nbdist.settings import no_place
from nbdist.wire.messages import Display, Hello, Interrupt, Pulse, Received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nbdist.hub.link.agent_connections import Heard
    from nbdist.hub.running.launch_plan import Plan
    from nbdist.hub.running.watch import Output
    from nbdist.job.job import Job
    from nbdist.launchers.host.engines import Host
    from nbdist.launchers.scripts.hosts import Reached

INTERRUPT_SECONDS = 1.0
"""How long Python code may take to react before the launcher must end its ranks."""
END_SECONDS = 3.0
"""How long the launcher may take to end its ranks before all are killed."""
LAST_WORD_SECONDS = 2.0


class ScriptRun(JobRun):
    """Runs one script, with the warm process of this machine."""

    def __init__(
        self, host: Host, job: Job, plan: Plan, output: Output, hang_seconds: float
    ) -> None:
        super().__init__(
            job, output, timeout=plan.timeout, patience=hang_seconds, far=bool(plan.far)
        )
        self._host, self._plan, self._how = host, plan, launcher(plan.launcher)
        self._loop = asyncio.get_running_loop()
        self._line = Line(self._hear, newcomers=True)
        self._ranks = Ends(job, self._how.failures)
        self._launch = ScriptLaunch(host, job, plan, self._how)
        self._how_it_ends = Outcome(job, plan, self._how, self._ranks, host.warm)
        self._reached: Reached | None = None
        self._launcher = 0
        self._ended: asyncio.Future[Died | Refused] = self._loop.create_future()
        self._all_done = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._not_returned: NbdistError | None = None

    # -- what is heard -------------------------------------------------------------------------

    def _hear(self, rank: int, incarnation: int, message: Heard) -> None:
        ranks = self._ranks
        self._watch.wake()
        if isinstance(message, Hello) and incarnation > ranks.restart:
            self._restarted(incarnation, message.size)
        match message:
            case Hello():
                ranks.began(rank, message)
            case _ if incarnation != ranks.restart:
                pass
            case Display():
                self._output.display(message)
                self._line.send(rank, Received())
            case Pulse():
                ranks.pulsed(rank, message)
            case _:
                ranks.ended(rank, message.fault)
                self._look_for_all_done()

    def _look_for_all_done(self) -> None:
        if self._press.why is None and self._ranks.all_well():
            self._all_done.set()

    def _restarted(self, restart: int, size: int) -> None:
        job, plan = self._job, self._plan
        why = self._ranks.restarted(restart)
        text = f"Restart {restart} of {plan.max_restarts}: {why}"
        if plan.elastic:
            text = f"{why[0].upper()}{why[1:]}. All ranks begin again, now {size} of {plan.np}."
        job.report("restart", text, which=restart)
        job.restarts.append(text)
        job.gone = set(job.ranks[size:]) if size else set()
        self._all_done.clear()

    def _hear_launcher(self, word: Started | Died | Refused) -> None:
        match word:
            case Started():
                self._launcher = word.pid
                if self._press.why is not None:  # stopped before the rank connected
                    self._host.end(word.pid, 0.0)
            case _:
                self._ended.set_result(word)

    def running(self) -> dict[int, Pulse | None]:
        """See `nbdist.hub.running.watch.Watched`."""
        return self._ranks.running()

    def ended(self) -> set[int]:
        """See `nbdist.hub.running.watch.Watched`."""
        return self._ranks.over()

    def failed(self) -> bool:
        """See `nbdist.hub.running.watch.Watched`."""
        return super().failed() or self._ranks.failed()

    def looked(self) -> None:
        """See `nbdist.hub.running.watch.Watched`."""
        self._look_for_all_done()
        if self._press.why is None:
            self._how_it_ends.look_for_lost()

    async def stacks(self) -> dict[int, str]:
        """Return the stack of every rank, or a text without ranks."""
        ranks, launcher = self._ranks, self._launcher

        def dump(rank: int) -> None:
            stacks.have_dumped(ranks.pids[rank], launcher)

        found = await stacks.of(self._line, self._job.folder, ranks.pulses, dump)
        over = dict.fromkeys(ranks.done, "(the script has ended on this rank)\n")
        there = over | found
        return {rank: there.get(rank, "(the rank is not running)\n") for rank in self._job.ranks}

    # -- its life ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self._host.scripts.add(self._end_with_cluster)
        try:
            yield
        finally:
            self._host.scripts.discard(self._end_with_cluster)

    async def _prepare(self) -> None:
        plan = self._plan
        warm = await self._press.unless(self._host.ready())
        self._how.check(warm.torch)
        await self._press.unless(self._how.check_flags(plan.passed_on))
        if plan.far:
            await self._reach()

    async def _reach(self) -> None:
        """See that other hosts can take part, and listen where they find us."""
        needs = self._how.needs(self._plan.passed_on)
        asking = reach(self._plan.far, self._job.folder, needs)
        self._reached = await self._press.unless(asking)
        self._ranks.places = self._reached.names
        self._line.close()
        self._line = Line(self._hear, newcomers=True, host=self._reached.address)

    async def _work(self) -> None:
        job = self._job
        job.parts = dict.fromkeys(job.ranks, (0, None))
        self._output.begin()
        order = self._launch.order(self._line, self._reached)
        self._host.start_launcher(order, self._hear_launcher)
        await self._until_end()
        logs = {rank: job.log(rank) for rank in job.ranks}
        job.parts = {
            rank: (0, log.stat().st_size if log.exists() else 0) for rank, log in logs.items()
        }

    async def _until_end(self) -> None:
        """Wait for the launcher to end; take what is returned while the ranks still hold it."""
        gone = self._loop.create_task(self._host.warm.gone.wait())
        taking = self._loop.create_task(self._take_returned())
        try:
            over: set[asyncio.Future[Any]] = {self._ended, gone}
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            if self._all_done.is_set():  # a rank's last message may arrive after its end
                await asyncio.wait({taking}, timeout=LAST_WORD_SECONDS)
        finally:
            gone.cancel()
            taking.cancel()
        try:
            if taking.done():
                taking.result()
            elif self._plan.returns and self._all_done.is_set():
                raise NbdistError("the values that the ranks return did not arrive in time")  # noqa: TRY301
            elif self._plan.returns and ended_well(self._last_word()):
                self._note_nothing_returned(self._plan.returning)
        except NbdistError as err:
            self._not_returned = err

    async def _take_returned(self) -> None:
        job, names = self._job, self._plan.returns
        await self._all_done.wait()
        for rank in self._plan.returning if names else ():
            if rank in self._ranks.done:
                offer = await names_sent.ask_for(
                    self._line, rank, names, copied=self._reached is not None
                )
                job.returned[rank] = offer
            else:
                self._note_nothing_returned([rank])

    def _note_nothing_returned(self, ranks: Sequence[int]) -> None:
        why = "the rank ended without a message (os._exit)"
        for rank in ranks:
            self._job.returned[rank] = names_sent.no_offer(rank, self._plan.returns, why)

    def _last_word(self) -> Died | Refused | None:
        """Return how the launcher has ended, None if it has not."""
        return self._ended.result() if self._ended.done() else None

    async def _outcome(self) -> NbdistError | None:
        error = self._how_it_ends.tell(self._last_word(), self._press.why)
        if error is None and self._not_returned is not None:
            self._job.state, error = "failed", self._not_returned
        return error

    def _clear_away(self) -> None:
        folder = self._job.folder
        if self._launcher and not self._ended.done():
            self._host.end(self._launcher, 0.0)  # nor leave the launcher running
        self._host.forget_launcher(self._launch.name)
        self._line.close()
        for name in (PROGRAM, "rendezvous"):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob("rank*.stacks"):
            path.unlink()
        for left in (folder / self._how.FOLDER, self._launch.temp):
            shutil.rmtree(left, ignore_errors=True)

    def _fault(self, err: BaseException) -> NbdistError:
        return LaunchError(no_place(err)) if isinstance(err, OSError) else super()._fault(err)

    # -- stopping ------------------------------------------------------------------------------

    def press(self, why: Stop) -> None:
        """Stop the job, or speed up a running stop."""
        if self._stopping is not None:
            self._host.end(self._launcher, 0.0)
        elif not self._ended.done():
            self._press.press(why)
            self._ranks.look()  # later ends are our own doing
            self._stopping = self._loop.create_task(self._stop())

    def _end_with_cluster(self) -> None:
        self.press(WITH_CLUSTER)

    async def _stop(self) -> None:
        """Interrupt the Python code, then let the launcher end its ranks, then kill all."""
        waiting = set(self._ranks.pulses)
        for rank in waiting:
            self._line.send(rank, Interrupt(self._job.id))
        deadline = self._loop.time() + (INTERRUPT_SECONDS if waiting else 0)
        while not waiting <= self._ranks.done.keys() and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
        self._output.quiet()
        if self._launcher:
            self._host.end(self._launcher, END_SECONDS)
