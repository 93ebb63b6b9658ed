"""The agent of an engine: one thread in every rank that speaks with the hub.

Work for the main thread (cells, forming groups) is put on the engine's event loop. Work that cannot
wait, even while the main thread is stuck in C++ (abort, interrupt, stacks), is done here.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from nbdist.errors import NbdistError
from nbdist.machine.amounts import in_time
from nbdist.rank.call_answers import Answers, AtOnce, IfIdle
from nbdist.rank.cell_socket import CellSocket
from nbdist.rank.hub_connection import HubConnection, hello
from nbdist.rank.looking import vitals
from nbdist.rank.metrics import gpu, logger, pace, progress
from nbdist.rank.metrics.resource_file import Resources
from nbdist.rank.values.user_errors import text_of
from nbdist.wire.activity import Vitals
from nbdist.wire.messages import Abort, Interrupt, Message, Pulse, Quit, Reply, Run
from nbdist.wire.rank_calls import Ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from tornado.ioloop import IOLoop

    from nbdist.backends.choice import Backend
    from nbdist.rank.rank_spec import RankSpec
    from nbdist.rank.running.execute import CellRunner
    from nbdist.wire.encoding import ToAgent
    from nbdist.wire.group_reports import Waiting
    from nbdist.wire.rank_calls import AnyCall

INSPECT_SECONDS = 1.0
"""A request for the user's values that could not begin within this time gets a shorter answer."""


class Agent(HubConnection):
    """Receives calls and interrupts; sends pulses, displays and answers.

    It also makes the main thread's socket, which receives cells and sends their results.
    """

    def __init__(
        self,
        spec: RankSpec,
        loop: IOLoop,
        runner: CellRunner,
        backend: Backend,
        shell: Any,
    ) -> None:
        self._rank, self._namespace = spec.rank, shell.user_ns
        # Never closed: the main thread uses it, too.
        context = zmq.Context()
        self._device = str(self._namespace.get("device", ""))
        self._held: int | None = None
        """The GPU memory, in bytes, that the hub was last sent while this rank was idle."""
        super().__init__(
            context, spec.url, spec.keys,
            hello(spec.rank, spec.incarnation, spec.host, self._device),
        )  # fmt: skip
        self._loop, self._runner, self._backend = loop, runner, backend
        self._cells = CellSocket(spec, self._run_cell, loop.stop)
        self._displayed = False
        """Whether the running cell has sent a display."""
        runner.start(self._display, backend)
        self._answers = Answers(shell, runner, backend, self._doing)

    def _handle(self, message: ToAgent) -> None:
        match message:
            case Quit():
                self.end()
                self._loop.add_callback(self._loop.stop)
            case Interrupt():
                if self._backend.name == "horovod":  # the others' shutdown may free this rank first
                    with suppress(Exception):
                        self._runner.abort(message.job, self._backend.waiting())
                self._runner.interrupt(message.job, again=message.again)
            case Abort() if self._runner.job == message.job:
                self._free(message.job)
            case Ask():
                self._take(message.id, message.call)

    def _free(self, job: str) -> None:
        """Free the main thread from the collective in which it waits."""
        waiting, goes_on = None, True
        with suppress(Exception):  # freeing the thread matters more than the collective's name
            waiting = self._backend.waiting()
            goes_on = self._backend.goes_on_when_freed()
        self._runner.abort(job, waiting)
        if job and goes_on:
            # The collective would return wrong data: the cell must not reach its next line.
            self._runner.interrupt(job, again=waiting is not None)
        self._backend.abort()

    def _take(self, number: int, call: AnyCall) -> None:
        if isinstance(call, AtOnce):
            self._answer(number, partial(self._answers.at_once, call))
        elif isinstance(call, IfIdle):
            self._look(number, call)
        else:
            work = partial(self._answers.on_main, call)
            self._loop.add_callback(self._answer_on_main, number, work)

    def _display(self, message: Message) -> None:
        self._displayed = True
        self.send_now(message)

    async def _run_cell(self, message: Run) -> None:
        self._displayed = False
        self._answers.names.bind(message.parcel)
        logger.begin(message.logs, message.job, self._rank)
        self.resources = resources = Resources(message.logs, message.job, self._rank, message.began)
        self._backend.begin(self._namespace, message.job)
        done = await self._runner.run(message, self._backend.formed)
        self.resources = None
        resources.end()
        if not logger.end():
            done = msgspec.structs.replace(done, logged=False)
        # The cell's displays must reach the hub before its end does.
        send = self.send if self._displayed else self._cells.send
        paces, bars = pace.paces(), progress.end()
        if bars:
            with suppress(Exception):  # an error here must not prevent `Done`
                last = msgspec.structs.replace(
                    self._doing(), job=message.job, bars=bars, paces=paces
                )
                send(last)
        self._answers.names.let_go_of_rebound()
        send(done)

    def _look(self, number: int, call: IfIdle) -> None:
        if self._runner.lock.locked():
            self._answer(number, partial(self._answers.busy, call))
        else:
            late = time.monotonic() + INSPECT_SECONDS
            self._loop.add_callback(self._look_on_main, number, call, late)

    def _look_on_main(self, number: int, call: IfIdle, late: float) -> None:
        # If a cell has delayed this call, no one waits for its answer any more: the next cell must
        # not wait for it. The call does not yield to the loop, so it needs no lock.
        in_time = time.monotonic() < late and not self._runner.lock.locked()
        work = self._answers.idle if in_time else self._answers.busy
        self._answer(number, partial(work, call))

    async def _answer_on_main(self, number: int, work: Callable[[], object]) -> None:
        async with self._runner.lock:
            self._answer(number, work)

    def _answer(self, number: int, work: Callable[[], object]) -> None:
        try:
            self.send(Reply(number, work()))
        except NbdistError as err:
            self.send(Reply(number, error=str(err)))
        except BaseException as err:  # also a user's SystemExit must not end this rank
            self.send(Reply(number, error=f"{type(err).__name__}: {text_of(err)}"))

    def _pulse(self) -> Pulse | None:
        if self._runner.job:
            return self._doing()
        held = gpu.memory()
        if held == self._held:
            return None
        # The hub needs nothing else from an idle rank.
        self._held, self._meter.device = held, gpu.device()
        return Pulse("", None, "", None, Vitals(0, gpu_memory=held), device=self._on())

    def _doing(self) -> Pulse:
        runner, waiting = self._runner, self._backend.waiting()
        if waiting is not None and 0 < waiting.limit < waiting.since:
            self._end_wait(waiting)
        taken = self._meter.read(0.0 if waiting is None else waiting.since)
        return Pulse(
            runner.job, runner.line(), vitals.where(runner.main), waiting, taken,
            progress.bars(), self._on(), showing=runner.showing, interrupted=runner.interrupted,
        )  # fmt: skip

    def _end_wait(self, waiting: Waiting) -> None:
        """End a wait on a GPU that exceeds its group's limit, as torch ends waits on CPUs."""
        number = "" if waiting.seq is None else f" #{waiting.seq}"
        error = TimeoutError(
            f"{waiting.op}{number} has waited {in_time(int(waiting.since))} for other ranks, which "
            f"is the limit of its process group ({waiting.group or 'unnamed'}); set another limit "
            "with timeout= of new_group or init_process_group"
        )
        self._runner.fail(self._runner.job, error)
        self._backend.abort()

    def _on(self) -> str:
        """Return the device of this rank: its own, or the GPU that a cell has begun to use."""
        return self._device if self._meter.device == "cpu" else self._meter.device
