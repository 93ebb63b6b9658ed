"""ipyparallel's heart monitor, which beats only while an engine waits to be taken in.

The controller takes an engine in when its heart has answered a beat. After that nobody needs
beats: the warm process sees ranks die, at once. Ten beats a second took one percent of a core from
every training. Here the controller's hub says which heart is new, through a pipe, and the monitor
(a process that the controller forks) beats until it has heard that one.
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
"""An engine whose heart has not answered by then is waited for no longer."""


class AwaitedMonitor(HeartMonitor):
    """Beats while hearts are awaited."""

    told_of: ClassVar[int]
    """The end of a pipe that says which heart is new."""

    def start(self) -> None:
        """Wait for word of a heart."""
        super().start()
        self.caller.stop()
        self.caller: Any = PeriodicCallback(self.beat, 1e3 * BEAT_SECONDS)
        self._awaited: dict[bytes, float] = {}
        self._told = b""
        IOLoop.current().add_handler(self.told_of, self._hear, IOLoop.READ)

    def _hear(self, fd: int, _events: int) -> None:
        *hearts, self._told = (self._told + os.read(fd, 1 << 16)).split(b"\n")
        late = self.loop.time() + AWAITED_SECONDS
        self._awaited |= dict.fromkeys(hearts, late)
        if not self.caller.is_running():
            self.caller.start()
            self.beat()

    def handle_pong(self, msg: list[bytes]) -> None:
        """Take an answer to any beat: where cores are short a heart is later than two beats."""
        if msg[0] in self._awaited:
            self.responses.add(msg[0])
        else:
            super().handle_pong(msg)

    def beat(self) -> None:
        """Beat, for the last time when no heart is awaited any more."""
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
    """Pace the heart monitor of the controller that this process is going to be.

    Where the monitor is not forked it goes at the pace that ipyparallel is told.
    """
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    register = Hub.register_engine

    def register_engine(hub: Hub, reg: Any, msg: Any) -> Any:  # ipyparallel's
        taken = register(hub, reg, msg)
        with contextlib.suppress(BlockingIOError):  # nobody reads: it was not forked
            for heart in hub.incoming_registrations:
                os.write(writing, heart + b"\n")
        return taken

    Hub.register_engine = register_engine
    AwaitedMonitor.told_of = reading
    heartmonitor.HeartMonitor = AwaitedMonitor
