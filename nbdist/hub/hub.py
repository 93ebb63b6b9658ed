"""`Hub`: manages the ranks and jobs of one cluster, and its connections to the agents.

Everything here runs on the hub's thread (`nbdist.hub.link.hub_loop`). Other threads use `Cluster`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.errors import LaunchError
from nbdist.hub.link.agent_connections import Heard, Line
from nbdist.hub.link.log_folders import Logs, log_size
from nbdist.hub.link.ranks import Rank
from nbdist.hub.link.turns import Turns
from nbdist.job import changes
from nbdist.job.deaths import Death
from nbdist.job.named_ranks import name_ranks
from nbdist.launchers.host.engines import Host, make_specs
from nbdist.launchers.host.protocol import CONTROLLER, Died, Refused, Started
from nbdist.machine.amounts import in_seconds
from nbdist.wire.messages import (
    PROTOCOL,
    Abort,
    Display,
    Done,
    Hello,
    Pulse,
    Quit,
    Received,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbdist.settings import Settings
    from nbdist.wire.group_reports import Digest
    from nbdist.wire.rank_calls import Call

QUIT_SECONDS = 1.0
SCRIPTS_SECONDS = 5.0
"""How long a launcher and its ranks may take to end with their cluster."""
FREE_SECONDS = 0.2
"""How often ranks that wait for a failed rank are told to stop waiting."""
SOCKETS = 2
"""The number of sockets of each rank: its agent's and its main thread's."""


class JobListener(Protocol):
    """Receives the events of a running job; see `nbdist.hub.running.cell_run.Run`."""

    def done(self, rank: int, done: Done) -> None:
        """Handle the end of a rank's cell."""

    def display(self, rank: int, display: Display) -> None:
        """Handle a rich display of the shown rank."""

    def pulsed(self, rank: int, pulse: Pulse) -> None:
        """Handle a rank's report of what it is doing."""

    def died(self, death: Death) -> None:
        """Handle the end of a rank's process."""


class Hub:
    """The hub of one cluster. Hub's thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.logs = Logs(settings)
        self.host = Host(settings.home, self._hear)
        try:
            self.line = Line(self._hear_agent, cells=self.host.cells)
        except BaseException:  # no socket could be made: end what was started
            self.host.abandon()
            raise
        self.send, self.call, self.call_all = self.line.send, self.line.call, self.line.call_all
        self.ranks: dict[int, Rank] = {}
        self.turns = Turns()
        self.running: dict[str, JobListener] = {}
        self.mending = asyncio.Lock()
        """Held while the process group is renewed; jobs whose turn comes wait for it."""
        self.begun: set[str] = set()
        """Jobs that use the present process group, which must not be renewed meanwhile."""
        self.none_begun = asyncio.Event()
        """Set while there are no such jobs."""
        self.none_begun.set()
        self.backend = "ddp"
        self.environ: dict[str, str] = {}
        self.generation = 0
        self.stale = False
        """Whether the process group must be renewed before the next cell."""
        self.uncompared = False
        """Whether models may differ between ranks, and were not compared on all ranks since."""
        self.failed: set[str] = set()
        """The jobs that have failed since the last cell that followed a comparison."""
        self.compared: dict[int, dict[str, Digest]] = {}
        """What each rank told at the last comparison, by path."""
        self.broken_off: dict[int, list[str]] = {}
        """For each rank, the aborted collectives behind which its GPU went on; reported with the
        next comparison."""
        self.sharing = ""
        """The backend of ranks that share GPUs; '' if no GPU is shared."""
        self.notes: list[str] = []
        """Messages about how groups were recovered; see `nbdist.hub.link.forming.drain`."""
        self.replacing = False
        """Whether ranks are being replaced because no other way of recovery succeeded."""
        self.given_up = False
        """Whether a rank has destroyed its groups and not re-created them yet."""
        self._arrivals: dict[int, asyncio.Future[None]] = {}
        self._incarnations: dict[int, int] = {}

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def begin(self, job: str) -> None:
        """Record that a job uses the present process group."""
        self.begun.add(job)
        self.none_begun.clear()

    def leave(self, job: str) -> None:
        """Record that a job no longer uses it."""
        self.begun.discard(job)
        if not self.begun:
            self.none_begun.set()

    # -- what agents say ------------------------------------------------------------------------

    def _hear_agent(self, number: int, _incarnation: int, message: Heard) -> None:
        rank = self.ranks.get(number)
        if rank is None:  # the cluster has been emptied since
            return
        match message:
            case Done():
                rank.state, rank.pulse = "dead" if rank.death else "idle", None
                if message.job in self.running:
                    self.running[message.job].done(rank.rank, message)
            case Display():
                self.send(number, Received())  # the rank waits for it
                if message.job in self.running:
                    self.running[message.job].display(rank.rank, message)
            case Pulse():
                rank.gpu_memory = message.vitals.gpu_memory
                rank.device = message.device or rank.device
                if message.job in self.running:
                    self.running[message.job].pulsed(rank.rank, message)
            case _:
                self._arrived(rank, message)

    def _arrived(self, rank: Rank, hello: Hello) -> None:
        arrival = self._arrivals.get(rank.rank)
        if arrival is None:  # its death was heard of before
            return
        if hello.protocol != PROTOCOL:
            msg = (
                f"rank {rank.rank} uses version {hello.protocol} of nbdist's protocol, and the "
                f"notebook version {PROTOCOL}: if nbdist was updated, restart the kernel"
            )
            self._arrivals.pop(rank.rank).set_exception(LaunchError(msg))
            return
        rank.hellos += 1
        rank.device = hello.device or rank.device
        if rank.hellos < SOCKETS:
            return
        rank.host, rank.pid, rank.state = hello.host, hello.pid, "idle"
        if not arrival.done():  # somebody still waits for it
            self._arrivals.pop(rank.rank).set_result(None)

    # -- births and deaths ---------------------------------------------------------------------

    def _hear(self, word: Started | Died | Refused) -> None:
        kind, _, identity = word.name.partition(" ")
        if word.name == CONTROLLER and not isinstance(word, Started):
            self._controller_lost()
        if kind != "rank":
            return
        rank = self.ranks.get(int(identity.split(".")[0]))
        if rank is None or rank.identity != identity.encode():
            return
        match word:
            case Started():
                rank.pid, rank.created = word.pid, word.created
            case Refused():
                self._lost(rank, Death(rank.rank, 0, 0, 1, False, time.time(), None), word.why)
            case _:
                line, now = rank.pulse.line if rank.pulse else None, time.time()
                death = Death(
                    rank.rank, word.pid, word.signum, word.code, word.out_of_memory, now, line
                )
                self._lost(rank, death, f"it ended with exit code {word.code or -word.signum}")

    def _controller_lost(self) -> None:
        """Let waits for ranks end that the dead controller can no longer register."""
        log = self.host.controller_log_in_words()
        for rank, arrival in self._arrivals.items():
            if not arrival.done():
                msg = f"ipyparallel's controller ended while rank {rank} was starting; {log}"
                arrival.set_exception(LaunchError(msg))

    def warm_lost(self) -> None:
        """Record that the warm process has ended, and all ranks with it."""
        for rank in self.ranks.values():
            if rank.state != "dead":
                self._lost(
                    rank, _killed(rank), "the warm process, which starts the ranks, has ended"
                )

    def count_as_dead(self, number: int) -> None:
        """Record the death of a rank that was killed, and that the system has not ended yet."""
        rank = self.ranks[number]
        self._lost(rank, _killed(rank), "it was killed")

    def _lost(self, rank: Rank, death: Death, why: str) -> None:
        rank.state, rank.death, self.stale = "dead", death, True
        arrival = self._arrivals.pop(rank.rank, None)
        if arrival is not None and not arrival.done():
            log = self.host.log_in_words(rank.rank)
            arrival.set_exception(LaunchError(f"rank {rank.rank} did not start: {why}; {log}"))
        self.line.lost(rank.rank)
        changes.happened()
        for listener in list(self.running.values()):
            listener.died(death)

    def watch_warm(self) -> None:
        """Watch for the end of the warm process."""

        async def watch() -> None:
            await self.host.warm.gone.wait()
            self.warm_lost()

        self._warm_watch = self.loop.create_task(watch())

    async def bear(self, ranks: Iterable[int], size: int, engine: str) -> None:
        """Start processes for these ranks, and wait until each has connected."""
        ranks = list(ranks)
        environ = {k: v for k, v in self.host.environ_changes().items() if v is not None}
        specs = make_specs(
            self.host, ranks, size, incarnations=self._incarnations, backend=self.backend,
            recovery=(await self.host.ready()).recovery,
            url=self.line.url, keys=self.line.keys, engine=engine, environ=environ | self.environ,
        )  # fmt: skip
        for spec in specs:
            folder = self.logs.folder
            end = log_size(folder / f"rank{spec.rank}.log")
            self.ranks[spec.rank] = Rank(spec.rank, folder, spec.incarnation, log_end=end)
            self._incarnations[spec.rank] = spec.incarnation + 1
            self.line.expect(spec.rank, spec.incarnation)
            self._arrivals[spec.rank] = self.loop.create_future()
            self.host.start_rank(spec)
        arrivals = [self._arrivals[rank] for rank in ranks]
        done, waiting = await asyncio.wait(
            arrivals, timeout=self.settings.start_seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        problems = [problem for arrival in done if (problem := arrival.exception())]
        for arrival in waiting:
            arrival.cancel()
        if problems:
            raise problems[0]
        if waiting:
            missing = [rank for rank in ranks if self.ranks[rank].state == "starting"]
            log = self.host.log_in_words(missing[0])
            msg = (
                f"{name_ranks(missing)} had not started after "
                f"{in_seconds(self.settings.start_seconds)} (NBDIST_START_SECONDS); {log}"
            )
            raise LaunchError(msg)

    async def demand(self, ranks: Iterable[int], call: Call[Any]) -> None:
        """Call these ranks at once, for a joint operation; raise the first error."""
        calls = {
            self.loop.create_task(self.call(rank, call, timeout=self.settings.form_seconds)): rank
            for rank in ranks
        }
        ended, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        problems = [problem for call in ended if (problem := call.exception())]
        if not problems:
            return
        self.stale = True
        await self.free({call: calls[call] for call in waiting}, str(problems[0]))
        raise problems[0]

    async def free(self, calls: dict[asyncio.Task[Any], int], why: str) -> None:
        """Free ranks that wait for a failed rank, while no cell is running.

        This is repeated, because a rank may not have begun to wait at the first time.
        """
        waiting = set(calls)
        while waiting:
            for call in waiting:
                self.send(calls[call], Abort(job="", why=why))
            ended, waiting = await asyncio.wait(waiting, timeout=FREE_SECONDS)
            for call in ended:
                call.exception()  # a consequence, not reported

    async def end(self, ranks: Iterable[int]) -> None:
        """End these ranks' processes: SIGTERM, then SIGKILL."""
        living = [
            self.ranks[rank]
            for rank in ranks
            if self.ranks[rank].pid and self.ranks[rank].death is None
        ]
        for rank in living:
            self.send(rank.rank, Quit())
        deadline = self.loop.time() + QUIT_SECONDS
        while any(rank.death is None for rank in living) and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for rank in living:
            if rank.death is None:
                self.host.end(rank.pid, 0.0)
        while any(rank.death is None for rank in living) and self.loop.time() < deadline + 2:
            await asyncio.sleep(0.01)

    async def empty(self) -> None:
        """End all ranks; the warm process and the controller stay for later ranks."""
        ended = list(self.ranks)
        await self.end(ended)
        self.ranks.clear()
        for rank in ended:
            await self.host.forget_engine(rank)
        # Reset the state of the ended ranks.
        self.stale = self.uncompared = self.given_up = False
        self.broken_off, self.compared = {}, {}
        self.failed.clear()

    async def stop(self) -> None:
        """End everything of this cluster, and the scripts that its warm process has launched."""
        for end in list(self.host.scripts):
            end()
        deadline = self.loop.time() + SCRIPTS_SECONDS
        while self.host.scripts and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        if not self.host.warm.gone.is_set():
            await self.end(list(self.ranks))
        await self.host.stop()
        self.line.close()
        for rank in self.ranks.values():
            rank.state = "dead"
        self.logs.close()


def _killed(rank: Rank) -> Death:
    line = rank.pulse.line if rank.pulse else None
    return Death(rank.rank, rank.pid, signal.SIGKILL, 0, False, time.time(), line)
