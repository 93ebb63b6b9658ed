"""The agent: one thread in every rank that speaks with the hub.

Only this thread touches the socket. Other threads hand it messages through `send`. Work that must
happen on the main thread (cells, forming groups) is put on the engine's event loop; work that must
happen *now*, while the main thread is stuck in C++ (abort, interrupt, stacks), is done here.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import zmq

from nbdist.errors import NbdistError, UsageError
from nbdist.rank import vitals
from nbdist.rank.cells import CellSocket
from nbdist.rank.completion import Completing
from nbdist.rank.names import Names
from nbdist.rank.who import Who, free
from nbdist.wire import channel
from nbdist.wire.inspection import Completions, Freed, State
from nbdist.wire.messages import (
    Abort,
    Call,
    Done,
    Hello,
    Interrupt,
    Message,
    Pulse,
    Quit,
    Reply,
    Run,
    decode_to_agent,
    encode,
)
from nbdist.wire.parcel import Parcel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tornado.ioloop import IOLoop

    from nbdist.backends.choice import Backend
    from nbdist.rank.execute import CellRunner
    from nbdist.rank.spec import RankSpec

PULSE_SECONDS = 0.5
INSPECT_SECONDS = 1.0
"""A look at the user's values that could not begin by then is left undone."""


class Agent(threading.Thread):
    """Cells in; output positions, pulses and outcomes back."""

    def __init__(
        self,
        spec: RankSpec,
        loop: IOLoop,
        runner: CellRunner,
        backend: Backend,
        shell: Any,
    ) -> None:
        super().__init__(name="nbdist-agent", daemon=True)
        self._spec, self._loop, self._runner, self._backend = spec, loop, runner, backend
        self._namespace = shell.user_ns
        self._names = Names(shell)
        self._outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._me = psutil.Process()
        self._context = zmq.Context()
        self._cells = CellSocket(self._context, spec, self._run, self.send)
        runner.start(self._cells.send)
        engine = {thread.ident for thread in threading.enumerate() if thread.ident} - {runner.main}
        who, completing = Who(shell), Completing(shell)
        self._now: dict[str, Callable[..., Any]] = {
            "open_store": backend.open_store,
            "stacks": lambda: vitals.stacks(runner.main, engine, runner.cell_file),
            "vitals": self._vitals,
            "holds": self._names.holds,
            "let_go": self._names.let_go,
            "starting_with": completing.names,
            "glance": lambda **args: who.glance(self._busy(), **args),
        }
        self._on_main: dict[str, Callable[..., Any]] = {
            "form": self._form,
            "shared": lambda: backend.shared(shell.user_ns),
            "checksums": lambda: backend.checksums(shell.user_ns),
            "sync": self._sync,
            "names": self._names.mine,
            "give": self._names.give,
            "take": self._names.take,
            "receive": self._receive,
            "bind": self._names.bind,
            "drop": self._names.drop,
            "offer": self._names.offer,
            "adopt": self._adopt,
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

    def send(self, message: Message) -> None:
        """Queue a message for the hub. Any thread."""
        self._outbox.put(message)
        self._wake.send(b"\0")

    def run(self) -> None:
        """Serve until told to quit."""
        context = self._context
        sock = channel.connect(context, self._spec.url, self._spec.keys, self._spec.identity)
        spec, device = self._spec, str(self._namespace.get("device", ""))
        sock.send(encode(Hello(spec.rank, spec.incarnation, os.getpid(), spec.host, device)))
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        next_pulse = 0.0
        while True:
            ready = dict(poller.poll(int(PULSE_SECONDS * 1000)))
            busy = bool(self._runner.job)
            if self._woken.fileno() in ready:
                self._flush(sock)
            if sock in ready:
                message = decode_to_agent(sock.recv())
                if isinstance(message, Quit):
                    break
                if not isinstance(message, Run):  # cells have a socket of their own
                    self._handle(message)
            if not busy:
                next_pulse = time.monotonic() + PULSE_SECONDS
            elif time.monotonic() >= next_pulse:
                next_pulse = time.monotonic() + PULSE_SECONDS
                sock.send(encode(self._pulse()))
        # The context is left to the process's end, which is near: the main thread uses it too.
        sock.close(0)
        self._loop.add_callback(self._loop.stop)

    def _flush(self, sock: zmq.Socket[bytes]) -> None:
        self._woken.recv(4096)
        while not self._outbox.empty():
            sock.send(encode(self._outbox.get()))

    def _handle(self, message: Interrupt | Abort | Call) -> None:
        if isinstance(message, Interrupt):
            self._runner.interrupt(message.job)
        elif isinstance(message, Abort):
            if self._runner.job == message.job:
                self._runner.abort(message.job, self._backend.waiting())
                self._backend.abort()
        elif message.method in self._now:
            self._answer(message, self._now[message.method])
        elif message.method in self._if_idle:
            self._inspect(message)
        else:
            self._loop.add_callback(self._call_on_main, message)

    async def _run(self, message: Run) -> Done:
        self._names.bind(message.parcel)
        done = await self._runner.run(message, self._backend.formed)
        self._names.let_go_of_rebound()
        return done

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
        except Exception as err:  # whatever it is, the hub must hear of it
            self.send(Reply(call.id, error=f"{type(err).__name__}: {err}"))

    def _receive(self, parcel: dict[str, Any], run: dict[str, Any]) -> list[str]:
        # As the cell will find it: what is unpickled may import from there.
        self._runner.mirror.follow(msgspec.convert(run, Run))
        return self._names.receive(msgspec.convert(parcel, Parcel))

    def _form(self, port: int, generation: int) -> None:
        self._backend.form(port, generation)
        os.environ["MASTER_PORT"] = str(port)

    def _sync(self, name: str, source: int) -> None:
        if name not in self._namespace:
            msg = f"there is no variable `{name}` on this rank"
            raise UsageError(msg)
        self._backend.sync(self._namespace[name], source)

    def _adopt(self, names: list[str], source: int) -> list[str]:
        models = [self._namespace[name] for name in names]
        return self._backend.adopt(models, source)

    def _pulse(self) -> Pulse:
        runner = self._runner
        return Pulse(
            runner.job,
            runner.line(),
            vitals.where(runner.main),
            self._backend.waiting(),
            self._me.memory_info().rss,
        )

    def _vitals(self) -> dict[str, Any]:
        pulse = self._pulse()
        return vitals.memory() | {
            "job": pulse.job,
            "line": pulse.line,
            "where": pulse.where,
            "waiting": pulse.waiting,
            "device": str(self._namespace.get("device", "")),
        }
