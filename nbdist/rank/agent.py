"""The agent of an engine: one thread in every rank that speaks with the hub.

Work that must happen on the main thread (cells, forming groups) is put on the engine's event loop;
work that must happen *now*, while the main thread is stuck in C++ (abort, interrupt, stacks), is
done here.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from nbdist.errors import NbdistError
from nbdist.machine import sockets
from nbdist.machine.amounts import in_time
from nbdist.rank.cell_socket import CellSocket
from nbdist.rank.looking import vitals
from nbdist.rank.looking.completion import Completing
from nbdist.rank.looking.rank_names import Names
from nbdist.rank.looking.who import Who, free
from nbdist.rank.metrics import gpu, logger, pace, progress
from nbdist.rank.metrics.resource_file import Resources
from nbdist.rank.speaker import Speaker, hello
from nbdist.rank.values.user_errors import text_of
from nbdist.wire.activity import Vitals
from nbdist.wire.inspection import Completions, Freed, State
from nbdist.wire.messages import (
    Abort,
    Call,
    Interrupt,
    Message,
    Pulse,
    Quit,
    Reply,
    Run,
)
from nbdist.wire.parcel import Parcel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tornado.ioloop import IOLoop

    from nbdist.backends.choice import Backend
    from nbdist.rank.rank_spec import RankSpec
    from nbdist.rank.running.execute import CellRunner
    from nbdist.wire.group_reports import Waiting
    from nbdist.wire.messages import ToAgent

INSPECT_SECONDS = 1.0
"""A look at the user's values that could not begin by then is left undone."""


class Agent(Speaker):
    """Questions and interrupts in; pulses, displays and answers back.

    It also makes the main thread's socket, on which cells come and their outcomes leave.
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
        # Left to the process's end: the main thread uses it too.
        context = zmq.Context()
        self._device = str(self._namespace.get("device", ""))
        self._held: int | None = None
        """Bytes on the GPU that the hub was told of while this rank was idle."""
        super().__init__(
            context, spec.url, spec.keys,
            hello(spec.rank, spec.incarnation, spec.host, self._device),
        )  # fmt: skip
        self._loop, self._runner, self._backend = loop, runner, backend
        self._names = Names(shell)
        self._cells = CellSocket(spec, self._run_cell, loop.stop)
        self._displayed = False
        """Whether the running cell has displayed something."""
        runner.start(self._display)
        engine = {thread.ident for thread in threading.enumerate() if thread.ident} - {runner.main}
        who, completing = Who(shell), Completing(shell)
        self._now: dict[str, Callable[..., Any]] = {
            "open_store": self._open_store,
            "heard": self._heard.set,
            "stacks": lambda: vitals.stacks(runner.main, engine, runner.cell_file, runner.named),
            "vitals": self._vitals,
            "holds": self._names.holds,
            "let_go": self._names.let_go,
            "starting_with": completing.names,
            "glance": lambda **args: who.glance(self._busy(), **args),
        }
        self._on_main: dict[str, Callable[..., Any]] = {
            "form": self._form,
            "sharers": lambda path: backend.sharers(shell.user_ns, path),
            "groups": backend.groups,
            "weigh": lambda: backend.weigh(shell.user_ns),
            "checksums": lambda: backend.checksums(shell.user_ns),
            "sync": lambda **args: backend.sync(shell.user_ns, **args),
            "names": self._names.mine,
            "give": self._names.give,
            "take": self._names.take,
            "receive": self._receive,
            "bind": self._names.bind,
            "drop": self._names.drop,
            "offer": self._names.offer,
        }
        self._if_idle: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "who": (who.look, self._now["glance"]),
            "complete": (completing.complete, lambda **_: Completions(self._busy())),
            "free": (
                lambda: free(shell, runner.forget_value),
                lambda: Freed(self._busy()),
            ),
        }
        """What is done on the main thread if it is idle, and what is answered if it is busy."""

    def _hear(self, message: ToAgent) -> None:
        if isinstance(message, Quit):
            self.end()
            self._loop.add_callback(self._loop.stop)
        elif isinstance(message, Interrupt):
            self._runner.interrupt(message.job)
        elif isinstance(message, Abort):
            if self._runner.job == message.job:
                self._free(message.job)
        elif isinstance(message, Call):
            self._call(message)

    def _free(self, job: str) -> None:
        """Free the main thread from whatever collective it waits in."""
        waiting, goes_on = None, True
        with suppress(Exception):  # to free it is more important than from what
            waiting = self._backend.waiting()
            goes_on = self._backend.goes_on_when_freed()
        self._runner.abort(job, waiting)
        if job and goes_on:
            # What it goes on with would be wrong: it must not reach its next line.
            self._runner.interrupt(job)
        self._backend.abort()

    def _call(self, message: Call) -> None:
        if message.method in self._now:
            self._answer(message, self._now[message.method])
        elif message.method in self._if_idle:
            self._inspect(message)
        else:
            self._loop.add_callback(self._call_on_main, message)

    def _display(self, message: Message) -> None:
        self._displayed = True
        self.send_now(message)

    async def _run_cell(self, message: Run) -> None:
        self._displayed = False
        self._names.bind(message.parcel)
        logger.begin(message.logs, message.job, self._rank)
        self.resources = resources = Resources(message.logs, message.job, self._rank, message.began)
        done = await self._runner.run(message, self._backend.formed)
        self.resources = None
        resources.end()
        if not logger.end():
            done = msgspec.structs.replace(done, logged=False)
        # What the cell has displayed must not be overtaken by its end.
        send = self.send if self._displayed else self._cells.send
        paces, bars = pace.paces(), progress.end()
        if bars:
            with suppress(Exception):  # what is looked at here must not keep `Done` back
                last = msgspec.structs.replace(
                    self._doing(), job=message.job, bars=bars, paces=paces
                )
                send(last)
        self._names.let_go_of_rebound()
        send(done)

    def _inspect(self, call: Call) -> None:
        if self._runner.lock.locked():
            self._answer(call, self._if_idle[call.method][1])
        else:
            late = time.monotonic() + INSPECT_SECONDS
            self._loop.add_callback(self._inspect_on_main, call, late)

    def _inspect_on_main(self, call: Call, late: float) -> None:
        # It may have had to wait for a cell, and must not make the next one wait for an answer that
        # nobody waits for. All is done before the loop runs on, so it needs no turn.
        idle, busy = self._if_idle[call.method]
        in_time = time.monotonic() < late and not self._runner.lock.locked()
        self._answer(call, idle if in_time else busy)

    def _busy(self) -> State:
        return State(busy=True, line=self._runner.line() if self._runner.job else None)

    async def _call_on_main(self, call: Call) -> None:
        async with self._runner.lock:
            self._answer(call, self._on_main[call.method])

    def _answer(self, call: Call, work: Callable[..., Any]) -> None:
        try:
            self.send(Reply(call.id, work(**call.args)))
        except NbdistError as err:
            self.send(Reply(call.id, error=str(err)))
        except BaseException as err:  # a user's SystemExit, too, must not be this rank's end
            self.send(Reply(call.id, error=f"{type(err).__name__}: {text_of(err)}"))

    def _receive(self, parcel: dict[str, Any], run: dict[str, Any]) -> list[str]:
        # As the cell will find it: what is unpickled may import from there.
        self._runner.mirror.follow(msgspec.convert(run, Run))
        return self._names.receive(msgspec.convert(parcel, Parcel))

    def _open_store(self) -> tuple[int, int]:
        """Open the store of the next generation; return its port, and one for who needs another."""
        self._reserved = sockets.reserve()
        return self._backend.open_store(), self._reserved.getsockname()[1]

    def _form(
        self, port: int, master_port: int, generation: int, way: str, fsdp: str
    ) -> dict[str, Any]:
        lost = self._backend.form(port, generation, way, self._namespace, fsdp=fsdp)
        self._backend.meet_at(master_port)
        os.environ["MASTER_PORT"] = str(master_port)
        broken, self._backend.broken_off = sorted(self._backend.broken_off), set()
        return {"lost": lost, "broken_off": broken}

    def _pulse(self) -> Pulse | None:
        if self._runner.job:
            return self._doing()
        held = gpu.memory()
        if held == self._held:
            return None
        # Nothing else of an idle rank is asked for again and again.
        self._held, self._meter.device = held, gpu.device()
        return Pulse("", None, "", None, Vitals(0, gpu_memory=held), device=self._on())

    def _doing(self) -> Pulse:
        runner, waiting = self._runner, self._backend.waiting()
        if waiting is not None and 0 < waiting.limit < waiting.since:
            self._end_wait(waiting)
        taken = self._meter.read(0.0 if waiting is None else waiting.since)
        return Pulse(
            runner.job, runner.line(), vitals.where(runner.main), waiting, taken,
            progress.bars(), self._on(), showing=runner.showing,
        )  # fmt: skip

    def _end_wait(self, waiting: Waiting) -> None:
        """End a wait on a GPU that is past its group's limit, as torch ends those on CPUs."""
        number = "" if waiting.seq is None else f" #{waiting.seq}"
        error = TimeoutError(
            f"{waiting.op}{number} has waited {in_time(int(waiting.since))} for other ranks, which "
            f"is the limit of its process group ({waiting.group or 'unnamed'}); set another one "
            "with timeout= of new_group or init_process_group"
        )
        self._runner.fail(self._runner.job, error)
        self._backend.abort()

    def _on(self) -> str:
        """Return what this rank computes on: what it was given, or a GPU that a cell has taken."""
        return self._device if self._meter.device == "cpu" else self._meter.device

    def _vitals(self) -> dict[str, Any]:
        pulse = self._doing()
        return vitals.memory() | {
            "cpu": pulse.vitals.cpu,
            "gpu": pulse.vitals.gpu,
            "gpu_memory": pulse.vitals.gpu_memory,
            "job": pulse.job,
            "line": pulse.line,
            "where": pulse.where,
            "waiting": pulse.waiting,
            "device": pulse.device,
        }
