"""The agent of a script's rank: says how it goes, and stops it when asked.

Only this thread touches the socket; others hand it messages through `send`.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import zmq

from nbdist.rank import vitals
from nbdist.wire import channel
from nbdist.wire.messages import (
    Abort,
    Call,
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.rank.program import Program
    from nbdist.wire.groups import Waiting

PULSE_SECONDS = 0.5
SOON_SECONDS = 1.0
FLUSH_SECONDS = 2.0
"""The hub has this long to take the last words of a rank that ends."""


class Reporter(threading.Thread):
    """One rank's line to the hub, while its script runs on the main thread.

    Parameters
    ----------
    program
        What runs.
    rank, restart
        Which rank it is, and how often the job has been started anew.
    waiting
        Returns the collective that the main thread is inside.
    """

    def __init__(
        self, program: Program, rank: int, restart: int, waiting: Callable[[], Waiting | None]
    ) -> None:
        super().__init__(name="nbdist-agent", daemon=True)
        self._program, self._rank, self._restart = program, rank, restart
        self._waiting = waiting
        self._main = threading.main_thread().ident or 0
        self._outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._me = psutil.Process()
        self._end = threading.Event()
        self.interrupted = threading.Event()
        self._heard = threading.Event()
        self.answers: dict[str, Callable[..., Any]] = {
            "stacks": self._stacks,
            "heard": self._heard.set,
        }
        """What the hub may ask for, besides."""

    def send(self, message: Message) -> None:
        """Queue a message for the hub. Any thread."""
        self._outbox.put(message)
        self._wake.send(b"\0")

    def send_now(self, message: Message) -> None:
        """Send a message and wait until the hub has it, so that no output overtakes it."""
        self._heard.clear()
        self.send(message)
        self._heard.wait(SOON_SECONDS)

    def close(self) -> None:
        """End when all that was queued has been sent."""
        self._end.set()
        self._wake.send(b"\0")
        self.join(FLUSH_SECONDS)

    def run(self) -> None:
        """Serve until closed."""
        program = self._program
        with zmq.Context() as context:
            identity = f"{self._rank}.{self._restart}".encode()
            sock = channel.connect(context, program.url, program.keys, identity)
            sock.linger = int(FLUSH_SECONDS * 1000)
            sock.send(encode(Hello(self._rank, self._restart, os.getpid(), socket.gethostname())))
            self._serve(sock)
            sock.close()

    def _serve(self, sock: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        next_pulse = time.monotonic() + PULSE_SECONDS
        while not (self._end.is_set() and self._outbox.empty()):
            ready = dict(poller.poll(int(PULSE_SECONDS * 1000)))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            while not self._outbox.empty():
                sock.send(encode(self._outbox.get()))
            if sock in ready:
                self._handle(decode_to_agent(sock.recv()))
            if time.monotonic() >= next_pulse:
                next_pulse = time.monotonic() + PULSE_SECONDS
                sock.send(encode(self._pulse()))

    def _handle(self, message: Run | Interrupt | Abort | Call | Quit) -> None:
        if isinstance(message, Interrupt):
            self.interrupted.set()
            signal.pthread_kill(self._main, signal.SIGINT)
        elif isinstance(message, Call):
            try:
                self.send(Reply(message.id, self.answers[message.method](**message.args)))
            except Exception as err:  # whatever it is, the hub must hear of it
                self.send(Reply(message.id, error=f"{type(err).__name__}: {err}"))

    def _stacks(self) -> str:
        return vitals.stacks(self._main, (), self._program.path)

    def _pulse(self) -> Pulse:
        return Pulse(
            self._program.job,
            self._program.line_now(self._main),
            vitals.where(self._main),
            self._waiting(),
            self._me.memory_info().rss,
        )
