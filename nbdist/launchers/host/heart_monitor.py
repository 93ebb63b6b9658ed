"""A heart monitor for ipyparallel that beats only while an engine waits for its registration.

The controller registers an engine when the engine's heart has answered a beat. After that no beats
are needed: the warm process notices the death of ranks at once. Ten beats a second would take one
percent of a core from every training. Here the controller's hub writes each new heart into a pipe,
and the monitor (a process that the controller forks) beats until this heart has answered.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, ClassVar

from ipyparallel.controller import heartmonitor
from ipyparallel.controller.heartmonitor import HeartMonitor
from ipyparallel.controller.hub import Hub
from tornado.ioloop import IOLoop, PeriodicCallback

BEAT_SECONDS = 0.02
AWAITED_SECONDS = 120.0
"""How long the monitor waits for a new engine's heart."""


class AwaitedMonitor(HeartMonitor):
    """A heart monitor that beats only while it waits for new hearts."""

    new_hearts: ClassVar[int]
    """The read end of the pipe with new hearts."""

    def start(self) -> None:
        """Wait for a new heart, without beating."""
        super().start()
        self.caller.stop()
        self.caller: Any = PeriodicCallback(self.beat, 1e3 * BEAT_SECONDS)
        self._awaited: dict[bytes, float] = {}
        self._rest = b""
        IOLoop.current().add_handler(self.new_hearts, self._hear, IOLoop.READ)

    def _hear(self, fd: int, _events: int) -> None:
        *hearts, self._rest = (self._rest + os.read(fd, 1 << 16)).split(b"\n")
        late = self.loop.time() + AWAITED_SECONDS
        self._awaited |= dict.fromkeys(hearts, late)
        if not self.caller.is_running():
            self.caller.start()
            self.beat()

    def handle_pong(self, msg: list[bytes]) -> None:
        """Accept an answer to any beat: on a busy machine it can be later than two beats."""
        if msg[0] in self._awaited:
            self.responses.add(msg[0])
        else:
            super().handle_pong(msg)

    def beat(self) -> None:
        """Beat; stop beating when no new heart is awaited."""
        super().beat()
        now = self.loop.time()
        self._awaited = {
            heart: late
            for heart, late in self._awaited.items()
            if heart not in self.hearts and now < late
        }
        if not self._awaited:
            self.caller.stop()


def beat_when_awaited() -> None:
    """Make the controller in this process use `AwaitedMonitor`.

    If the monitor is not forked, it beats at the period in ipyparallel's configuration.
    """
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    register = Hub.register_engine

    def register_engine(hub: Hub, reg: Any, msg: Any) -> Any:  # ipyparallel's
        taken = register(hub, reg, msg)
        with contextlib.suppress(BlockingIOError):  # no reader: the monitor was not forked
            for heart in hub.incoming_registrations:
                os.write(writing, heart + b"\n")
        return taken

    Hub.register_engine = register_engine
    AwaitedMonitor.new_hearts = reading
    heartmonitor.HeartMonitor = AwaitedMonitor
