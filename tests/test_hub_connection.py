"""A rank's line to the hub: whoever sends is never held up, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import zmq

from nbdist.hub.link.agent_connections import Line
from nbdist.rank.hub_connection import HubConnection
from nbdist.wire.messages import Display, Hello, Interrupt
from tests.helpers.waiting import Deadline, allowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.hub.link.agent_connections import Heard
    from nbdist.wire.encoding import ToAgent

MANY, THREADS = 5_000, 4


class Held(HubConnection):
    """Does nothing while it is held, then talks itself."""

    at_it, held = threading.Event(), threading.Event()

    def _handle(self, message: ToAgent) -> None:
        del message
        self.at_it.set()
        assert self.held.wait(allowed(60))
        self.say("itself")

    def _pulse(self) -> None:
        return None

    def say(self, who: str) -> None:
        """Send many messages."""
        for number in range(MANY):
            self.send(Display("7", number, who, {}))


async def test_nobody_waits_for_a_speaker_that_is_held_up() -> None:
    heard: list[Display | str] = []

    def hear(_rank: int, _incarnation: int, message: Heard) -> None:
        heard.append(message if isinstance(message, Display) else type(message).__name__)

    line = Line(hear, newcomers=True)
    context = zmq.Context[zmq.Socket[bytes]]()
    speaker = Held(context, line.url, line.keys, Hello(0, 0, os.getpid(), "here"), linger=1)
    speaker.start()
    try:
        await until(lambda: heard == ["Hello"])
        line.send(0, Interrupt("7"))
        await until(speaker.at_it.is_set)
        talking = [
            threading.Thread(target=speaker.say, args=[f"{n}"], daemon=True) for n in range(THREADS)
        ]
        for thread in talking:
            thread.start()
        await until(lambda: not any(thread.is_alive() for thread in talking))
        speaker.held.set()
        await until(lambda: len(heard) == 1 + (THREADS + 1) * MANY)
    finally:
        speaker.end(wait=allowed(10))
        line.close()
        context.destroy(0)
        for end in (speaker._wake, speaker._woken):  # a rank keeps them to its own end
            end.close()
    for who in [f"{n}" for n in range(THREADS)] + ["itself"]:  # each in its order
        said = [each.offset for each in heard if isinstance(each, Display) and each.kind == who]
        assert said == list(range(MANY))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something, but not for ever."""
    deadline = Deadline(30)
    while not condition():
        assert not deadline.over
        await asyncio.sleep(0.01)
