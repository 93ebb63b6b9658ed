"""The thread of ours in a rank that speaks with the hub: what engines and scripts have in common.

Only this thread touches the socket. Other threads hand it messages through `send`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import zmq

from nbdist.rank.metrics.meter import Meter
from nbdist.wire import channel
from nbdist.wire.encoding import decode_to_agent, encode_to_hub
from nbdist.wire.messages import Hello, Message, Pulse, Received

if TYPE_CHECKING:
    from nbdist.rank.metrics.resource_file import Resources
    from nbdist.wire.channel import Keys
    from nbdist.wire.encoding import ToAgent

PULSE_SECONDS = 0.5
SOON_SECONDS = 1.0
"""How long a thread waits for the hub's word that it has a message."""


class Speaker(ABC):
    """Says hello, sends what others hand it and a pulse while the rank is busy, hears the hub.

    Parameters
    ----------
    context
        For the socket; it is left open.
    url, keys
        Where the hub listens, and what lets us in.
    hello
        The first message; rank and incarnation name the socket.
    linger
        Seconds the last messages have to leave when it ends.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], url: str, keys: Keys, hello: Hello,
        linger: float = 0.0,
    ) -> None:  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="nbdist-agent", daemon=True)
        self._context, self._url, self._keys, self._hello = context, url, keys, hello
        self._linger = linger
        self._outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._received = threading.Event()
        self._waits = threading.RLock()  # held by the one thread that waits for `_received`
        self._end = threading.Event()
        self._meter = Meter()
        self._complained = False
        self.resources: Resources | None = None
        """What keeps what the running job takes; the main thread sets it."""

    @abstractmethod
    def _hear(self, message: ToAgent) -> None:
        """Do what the hub asks for; `Received` has been seen to. The thread's own."""

    @abstractmethod
    def _pulse(self) -> Pulse | None:
        """Return what the rank is doing, None while it is idle. The thread's own."""

    def send(self, message: Message) -> None:
        """Queue a message for the hub. Any thread."""
        self._outbox.put(message)
        self._wake_up()

    def send_now(self, message: Message) -> None:
        """Send a message and wait until the hub has it, so that no output overtakes it.

        Any thread. The hub answers `Received`, which sets `_received`.
        """
        # In a fork this thread is not there, and nobody hears the message.
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            self.send(message)
            return
        with self._waits:
            self._received.clear()
            self.send(message)
            self._received.wait(SOON_SECONDS)

    def start(self) -> None:
        """Begin to speak."""
        self._thread.start()

    def end(self, wait: float = 0.0) -> None:
        """End when all that was queued has been sent; wait for that so many seconds."""
        self._end.set()
        self._wake_up()
        if wait:
            self._thread.join(wait)

    def _wake_up(self) -> None:
        # Where there is no room for one more byte the thread wakes anyhow. Nobody may wait for
        # room, least of all the thread itself, which would make it.
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"\0")

    def _run(self) -> None:
        if sys.version_info[:2] == (3, 11):
            # There a thread that a debugger or coverage traces spins, holding the GIL, while a
            # signal waits for a main thread that is in C code (ceval.c, RESUME below DO_TRACING).
            # This is the thread that frees the main one.
            sys.settrace(None)
        identity = f"{self._hello.rank}.{self._hello.incarnation}".encode()
        sock = channel.connect(self._context, self._url, self._keys, identity)
        sock.send(encode_to_hub(self._hello))
        self._serve(sock)
        sock.close(int(1000 * self._linger))

    def _serve(self, sock: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        next_pulse = 0.0
        while not (self._end.is_set() and self._outbox.empty()):
            ready = dict(poller.poll(int(PULSE_SECONDS * 1000)))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            while not self._outbox.empty():
                sock.send(encode_to_hub(self._outbox.get()))
            if sock in ready:
                self._hear_safely(decode_to_agent(sock.recv()))
            if time.monotonic() >= next_pulse:
                next_pulse = time.monotonic() + PULSE_SECONDS
                pulse = self._pulse_safely()
                if pulse is not None:
                    sock.send(encode_to_hub(pulse))
                    self._keep(pulse)

    def _hear_safely(self, message: ToAgent) -> None:
        # Whatever torch raises while the main thread changes what is looked at: a rank whose agent
        # has ended can be neither freed nor stopped.
        try:
            match message:
                case Received():
                    self._received.set()
                case _:
                    self._hear(message)
        except Exception:  # it is in the rank's log, and the next message is heard
            traceback.print_exc()

    def _pulse_safely(self) -> Pulse | None:
        try:
            return self._pulse()
        except Exception:  # as above; the next one is due soon
            if not self._complained:
                traceback.print_exc()
            self._complained = True
            return None

    def _keep(self, pulse: Pulse) -> None:
        resources = self.resources  # the main thread may end the job at any moment
        if resources is not None and resources.job == pulse.job:
            try:
                resources.look(pulse.vitals)
            except Exception:  # as above: no more of it, and all else goes on
                traceback.print_exc()
                self.resources = None


def hello(rank: int, incarnation: int, host: str, device: str) -> Hello:
    """Return the first message of this process."""
    return Hello(rank, incarnation, os.getpid(), host, device)
