"""The thread of a rank that exchanges messages with the hub; the base for engines and scripts.

Only this thread uses the socket. Other threads queue messages by `send`.
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
"""How long a thread waits until the hub confirms a message."""


class HubConnection(ABC):
    """Sends `Hello`, queued messages, and pulses of a busy rank; handles the hub's messages.

    Parameters
    ----------
    context
        The context for the socket; it is not closed here.
    url, keys
        The address where the hub listens, and the keys of the cluster.
    hello
        The first message; its rank and incarnation become the socket's identity.
    linger
        Seconds that the last messages have, at the end, to leave this process.
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
        """Records the running job's use of resources; the main thread sets it."""

    @abstractmethod
    def _handle(self, message: ToAgent) -> None:
        """Handle a message of the hub, except `Received`. This object's own thread."""

    @abstractmethod
    def _pulse(self) -> Pulse | None:
        """Return what the rank is doing, None while it is idle. This object's own thread."""

    def send(self, message: Message) -> None:
        """Queue a message for the hub. Any thread."""
        self._outbox.put(message)
        self._wake_up()

    def send_now(self, message: Message) -> None:
        """Send a message and wait until the hub has it, so that no later output comes before it.

        Any thread. The hub answers `Received`, which sets `_received`.
        """
        # In a fork this thread does not exist, and the message is lost.
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            self.send(message)
            return
        with self._waits:
            self._received.clear()
            self.send(message)
            self._received.wait(SOON_SECONDS)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, wait: float = 0.0) -> None:
        """End after all queued messages have been sent; wait so many seconds for this."""
        self._end.set()
        self._wake_up()
        if wait:
            self._thread.join(wait)

    def _wake_up(self) -> None:
        # If the buffer is full, the thread wakes up anyhow. No thread may wait here for space,
        # least of all this object's own thread, which alone empties the buffer.
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"\0")

    def _run(self) -> None:
        if sys.version_info[:2] == (3, 11):
            # In Python 3.11 a thread that is traced (by a debugger or coverage) loops with the GIL
            # held while a signal is pending and the main thread is in C code (ceval.c, RESUME below
            # DO_TRACING). But this thread must free the main thread.
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
                self._handle_safely(decode_to_agent(sock.recv()))
            if time.monotonic() >= next_pulse:
                next_pulse = time.monotonic() + PULSE_SECONDS
                pulse = self._pulse_safely()
                if pulse is not None:
                    sock.send(encode_to_hub(pulse))
                    self._keep(pulse)

    def _handle_safely(self, message: ToAgent) -> None:
        # Reading torch's objects may raise anything while the main thread changes them. This thread
        # must go on: without it a rank can be neither freed nor stopped.
        try:
            match message:
                case Received():
                    self._received.set()
                case _:
                    self._handle(message)
        except Exception:  # logged; the next message is handled
            traceback.print_exc()

    def _pulse_safely(self) -> Pulse | None:
        try:
            return self._pulse()
        except Exception:  # as above; the next pulse follows soon
            if not self._complained:
                traceback.print_exc()
            self._complained = True
            return None

    def _keep(self, pulse: Pulse) -> None:
        resources = self.resources  # the main thread may end the job at any moment
        if resources is not None and resources.job == pulse.job:
            try:
                resources.look(pulse.vitals)
            except Exception:  # as above: recording ends, everything else goes on
                traceback.print_exc()
                self.resources = None


def hello(rank: int, incarnation: int, host: str, device: str) -> Hello:
    """Return the first message of this process."""
    return Hello(rank, incarnation, os.getpid(), host, device)
