"""A job that is a script: started by a launcher, watched and told of like any other.

Everything here runs on the hub's thread. The launcher is a child of the warm process, the ranks
are the launcher's; they say themselves how they are, and the launcher's end is the job's.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from nbdist.errors import LaunchError, NbdistError
from nbdist.hub.asking import names_sent, stacks
from nbdist.hub.link.line import Line
from nbdist.hub.running.launch_plan import SCRIPT
from nbdist.hub.running.reachable_hosts import reach
from nbdist.hub.running.script_ends import Ends, ended_by_launcher, ended_from_outside
from nbdist.hub.running.watch import Watch
from nbdist.job import report
from nbdist.job.job import Death, Job
from nbdist.job.job_states import INTERRUPT, WITH_CLUSTER, Stop
from nbdist.launchers.host.protocol import LAUNCHER, Died, Refused, Started, StartLauncher, Warm
from nbdist.launchers.host.warm_process import tail_in_words
from nbdist.launchers.scripts.launcher import Launch, launcher
from nbdist.machine.operating_system import private
from nbdist.rank.script_program import Program
from nbdist.settings import no_place
from nbdist.wire.messages import Display, Done, Fault, Hello, Interrupt, Pulse, Received

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from nbdist.hub.link.line import Heard
    from nbdist.hub.running.launch_plan import Plan
    from nbdist.hub.running.watch import Output
    from nbdist.launchers.host.engines import Host
    from nbdist.launchers.scripts.hosts import Reached

T = TypeVar("T")
INTERRUPT_SECONDS = 1.0
"""Python code has this long to react before the launcher is told to end its ranks."""
END_SECONDS = 3.0
"""The launcher has this long for that before all of them are killed."""
LAST_WORD_SECONDS = 2.0


class ScriptRun:
    """Runs one script on a machine's warm process."""

    def __init__(
        self, host: Host, job: Job, plan: Plan, output: Output, hang_seconds: float
    ) -> None:
        self._host, self._job, self._plan, self._output = host, job, plan, output
        self._how = launcher(plan.launcher)
        self._loop = asyncio.get_running_loop()
        self._line = Line(self._hear, newcomers=True)
        self._watch = Watch(job, output, hang_seconds, self, far=bool(plan.far))
        self._ranks = Ends(job, self._how.failures)
        self._reached: Reached | None = None
        self._launcher = 0
        self._ended: asyncio.Future[Died | Refused] = self._loop.create_future()
        self._all_done = asyncio.Event()
        self._pressed = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._why: Stop | None = None
        self._lost: dict[int, Death | Fault] = {}
        """The rank that an elastic job has lost last."""

    # -- what is heard -------------------------------------------------------------------------

    def _hear(self, rank: int, incarnation: int, message: Heard) -> None:
        ranks = self._ranks
        self._watch.wake()
        if isinstance(message, Hello):
            if incarnation > ranks.restart:
                self._restarted(incarnation, message.size)
            ranks.began(rank, message)
        elif incarnation != ranks.restart:
            return
        elif isinstance(message, Display):
            self._output.display(message)
            self._line.send(rank, Received())
        elif isinstance(message, Pulse):
            ranks.pulsed(rank, message)
        elif isinstance(message, Done):
            ranks.ended(rank, message.fault)
            self._look_for_all_done()

    def _look_for_all_done(self) -> None:
        if not self._why and self._ranks.all_well():
            self._all_done.set()

    def _restarted(self, restart: int, size: int) -> None:
        job, plan = self._job, self._plan
        why = self._ranks.restarted(restart)
        text = f"Restart {restart} of {plan.max_restarts}: {why}"
        if plan.elastic:
            text = f"{why[0].upper()}{why[1:]}. All begin again, with {size} of {plan.np} ranks."
        job.tell(f"restart {restart}", text)
        job.restarts.append(text)
        self._all_done.clear()

    def running(self) -> dict[int, Pulse | None]:
        """See `nbdist.hub.running.watch.Watched`."""
        return dict(self._ranks.pulses)

    def ended(self) -> set[int]:
        """See `nbdist.hub.running.watch.Watched`."""
        return set(self._ranks.done)

    def failed(self) -> bool:
        """See `nbdist.hub.running.watch.Watched`."""
        return bool(self._why) or any(self._ranks.done.values())

    def looked(self) -> None:
        """See `nbdist.hub.running.watch.Watched`."""
        self._look_for_all_done()
        self._look_for_lost()

    def _hear_launcher(self, word: Started | Died | Refused) -> None:
        if isinstance(word, Started):
            self._launcher = word.pid
            if self._why:  # stopped before it was there
                self._host.end(word.pid, 0.0)
        elif not self._ended.done():
            self._ended.set_result(word)

    def press(self, why: Stop) -> None:
        """Stop the job, or hurry a stop that is under way."""
        if self._stopping is not None:
            self._host.end(self._launcher, 0.0)
        elif not self._ended.done():
            self._why = why
            self._ranks.look()  # who ends from now on does so by our doing
            self._pressed.set()
            self._stopping = self._loop.create_task(self._stop())

    def _end_with_cluster(self) -> None:
        self.press(WITH_CLUSTER)

    async def stacks(self) -> dict[int, str]:
        """Return where every rank is, in words where none is there."""
        ranks, launcher = self._ranks, self._launcher

        def dump(rank: int) -> None:
            stacks.have_dumped(ranks.pids[rank], launcher)

        found = await stacks.of(self._line, self._job.folder, ranks.pulses, dump)
        over = dict.fromkeys(ranks.done, "(its script is over)\n")
        there = over | found
        return {rank: there.get(rank, "(it is not there)\n") for rank in self._job.ranks}

    # -- its life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take the job through; it has ended when this returns, whatever happened."""
        job = self._job
        error: NbdistError | None = None
        self._host.scripts.add(self._end_with_cluster)
        try:
            error = await self._run()
        except NbdistError as err:
            job.state, error = "failed", err
        except OSError as err:
            job.state, error = "failed", LaunchError(no_place(err))
        except (Exception, SystemExit) as err:  # a fault of ours must end the job, not hang it
            job.state = "failed"
            error = NbdistError(f"nbdist itself failed: {type(err).__name__}: {err}")
            error.__cause__ = err
        finally:
            self._host.scripts.discard(self._end_with_cluster)
            if self._launcher and not self._ended.done():
                self._host.end(self._launcher, 0.0)  # a fault of ours must not leave it either
            self._host.forget_launcher(self._name)
            self._line.close()
            for name in ("program.json", "rendezvous"):
                (job.folder / name).unlink(missing_ok=True)
            for path in job.folder.glob("rank*.stacks"):
                path.unlink()
            for folder in (job.folder / self._how.FOLDER, self._temp):
                shutil.rmtree(folder, ignore_errors=True)
            if job.began is not None and job.seconds is None:
                job.seconds = time.time() - job.began
        job.end(error)

    @property
    def _name(self) -> str:
        return LAUNCHER + self._job.folder.name

    @property
    def _temp(self) -> Path:
        return self._host.temp / self._job.id

    async def _run(self) -> NbdistError | None:
        job, plan = self._job, self._plan
        warm = await self._ready()
        if warm is None:
            return self._stopped()
        self._how.check(warm.torch)
        await self._unless_pressed(self._how.check_flags(plan.passed_on))
        if plan.far and not await self._reach():
            return self._stopped()
        began = time.monotonic()
        job.began, job.state = time.time(), "running"
        job.parts = dict.fromkeys(job.ranks, (0, None))
        self._output.begin()
        self._launch()
        watch = self._loop.create_task(self._watch.run())
        timer = None
        if plan.timeout is not None:
            late = Stop("timeout", plan.timeout)
            timer = self._loop.call_later(plan.timeout, self.press, late)
        not_returned: NbdistError | None = None
        try:
            not_returned = await self._until_end()
        finally:
            watch.cancel()
            if timer is not None:
                timer.cancel()
        job.seconds = time.monotonic() - began
        logs = {rank: job.log(rank) for rank in job.ranks}
        job.parts = {
            rank: (0, log.stat().st_size if log.exists() else 0) for rank, log in logs.items()
        }
        await self._watch.show_rest()
        error = self._outcome()
        if error is None and not_returned is not None:
            job.state, error = "failed", not_returned
        return error

    async def _ready(self) -> Warm | None:
        """Wait until a launcher can be started; None if the job was stopped before."""
        return await self._unless_pressed(self._host.ready())

    async def _reach(self) -> bool:
        """See that other hosts can take part, and listen where they find us.

        Return False if the job was stopped before.
        """
        needs = self._how.needs(self._plan.passed_on)
        asking = reach(self._plan.far, self._job.folder, needs)
        self._reached = await self._unless_pressed(asking)
        if self._reached is None:
            return False
        self._ranks.places = self._reached.names
        self._line.close()
        self._line = Line(self._hear, newcomers=True, host=self._reached.address)
        return True

    async def _unless_pressed(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what comes of it, None if the job was stopped before."""
        ready = self._loop.create_task(work)
        pressed = self._loop.create_task(self._pressed.wait())
        await asyncio.wait({ready, pressed}, return_when=asyncio.FIRST_COMPLETED)
        pressed.cancel()
        if self._why:
            ready.cancel()
            await asyncio.wait({ready})  # until it has left nothing
            return None
        return await ready

    def _launch(self) -> None:
        job, plan, folder = self._job, self._plan, self._job.folder
        self._temp.mkdir(mode=0o700)
        program = Program(
            job=job.id,
            url=self._line.url,
            keys=self._line.keys,
            path=str(folder / SCRIPT),
            cell_line=plan.cell_line,
            cell_lines=job.code.count("\n") + 1,
            lines=job.lines,
            shows_last=plan.shows_last,
            label=plan.label or f"Cell In[{job.number}]",
            launcher=plan.launcher,
            shown=job.ranks[0],
            returning=plan.returning,
            returns=plan.returns,
            arguments=plan.arguments,
            cwd=plan.cwd,
            sys_path=plan.sys_path,
            temp=str(self._temp),
            loopback=self._reached is None,
            began=job.began or time.time(),
        )
        file = folder / "program.json"
        with open(file, "wb", opener=private) as out:
            out.write(msgspec.json.encode(program))
        environ = {**self._host.environ_changes(), **self._how.environ(folder.name), **plan.environ}
        launch = Launch(
            plan.np, plan.max_restarts, plan.hosts, self._reached, plan.elastic, plan.passed_on,
            str(self._temp), plan.cold,
        )  # fmt: skip
        order = StartLauncher(
            self._name, plan.launcher, self._how.arguments(launch, folder, folder.name), str(file),
            environ, program.cwd, str(folder / "launcher.log"), plan.cold,
        )  # fmt: skip
        self._host.start_launcher(order, self._hear_launcher)

    async def _until_end(self) -> NbdistError | None:
        """Wait for the launcher to end; take what is returned while the ranks still hold it.

        Return why that could not be taken.
        """
        gone = self._loop.create_task(self._host.warm.gone.wait())
        taking = self._loop.create_task(self._take_returned())
        try:
            over: set[asyncio.Future[Any]] = {self._ended, gone}
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            if self._all_done.is_set():  # the last word of a rank may be later than its end
                await asyncio.wait({taking}, timeout=LAST_WORD_SECONDS)
        finally:
            gone.cancel()
            taking.cancel()
        try:
            if taking.done():
                taking.result()
            elif self._plan.returns and self._all_done.is_set():
                return NbdistError("what the ranks return could not be taken in time")
            elif self._plan.returns and self._ended_well():
                self._note_nothing_returned(self._plan.returning)
        except NbdistError as err:
            return err
        return None

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
        why = "the rank ended without a word (os._exit)"
        for rank in ranks:
            self._job.returned[rank] = names_sent.no_offer(rank, self._plan.returns, why)

    async def _stop(self) -> None:
        """Interrupt the Python code, then have the launcher end its ranks, then kill them all."""
        waiting = set(self._ranks.pulses)
        for rank in waiting:
            self._line.send(rank, Interrupt(self._job.id))
        deadline = self._loop.time() + (INTERRUPT_SECONDS if waiting else 0)
        while not waiting <= self._ranks.done.keys() and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
        self._output.quiet()
        if self._launcher:
            self._host.end(self._launcher, END_SECONDS)

    # -- how it ended --------------------------------------------------------------------------

    def _stopped(self) -> NbdistError:
        why = self._why or INTERRUPT
        self._job.state = why.state
        return report.interrupted(self._job, why)

    def _ended_well(self) -> bool:
        word = self._ended.result() if self._ended.done() else None
        return isinstance(word, Died) and word.code == 0 and word.signum == 0

    def _outcome(self) -> NbdistError | None:
        job = self._job
        if not self._ended.done() and not self._why:
            job.state = "failed"
            return LaunchError("the warm process has died, and the launcher and its ranks with it")
        self._ranks.note_faults(stopped=bool(self._why))
        self._ranks.complete_logs()
        if self._why:  # also where the warm process was ended before the launcher had
            return self._stopped()
        word = self._ended.result()
        if self._ended_well():
            job.state = "done"
            self._tell_ended_without()
            return None
        job.state = "failed"
        return self._failure(word)

    def _blame_lost(self) -> None:
        """Tell of the rank that was lost, and not of those that its launcher has ended since."""
        job, lost = self._job, self._lost
        ended = [rank for rank, fault in job.errors.items() if ended_from_outside(fault)]
        own = {rank for rank, fault in job.errors.items() if not report.secondary(fault)}
        if not lost or not own <= {*ended, *lost}:
            return
        for rank in ended:
            job.errors[rank] = ended_by_launcher(None)
        job.errors |= lost
        job.notes.append(self._how.GIVEN_UP)

    def _failure(self, word: Died | Refused) -> NbdistError:
        job = self._job
        self._blame_lost()
        own = [fault for fault in job.errors.values() if not report.secondary(fault)]
        if isinstance(word, Died) and word.signum and not own:
            return report.launcher_killed(job, self._plan.launcher, word.signum)
        if job.errors:
            return report.failure(job)
        log = tail_in_words(job.folder / "launcher.log")
        if isinstance(word, Refused):
            return LaunchError(f"{self._plan.launcher} could not be started: {word.why}")
        return LaunchError(f"{self._plan.launcher} ended with exit code {word.code}; {log}")

    def _look_for_lost(self) -> None:
        """Say which ranks an elastic job goes on without."""
        if not self._plan.elastic or not self._how.GOES_ON or self._why:
            return
        for rank, fault in self._ranks.lost().items():
            if not report.secondary(fault):
                self._lost = {rank: fault}
            self._tell_lost(rank, fault, "goes on if enough ranks are left")

    def _tell_ended_without(self) -> None:
        """Say which ranks an elastic job that has ended well has lost since the last look."""
        for rank, fault in self._job.errors.items():
            stopped = fault.aborted if isinstance(fault, Fault) else ended_from_outside(fault)
            well = stopped or report.silent(fault)
            if not well and rank not in self._ranks.without:
                self._tell_lost(rank, fault, "has ended without it")
        self._job.errors.clear()

    def _tell_lost(self, rank: int, fault: Death | Fault, then: str) -> None:
        how = report.told(rank, fault, self._job)
        text = f"{how[0].upper()}{how[1:]}; the job {then}."
        self._job.tell(f"lost {rank} {fault.at}", text)
        self._job.restarts.append(text)
