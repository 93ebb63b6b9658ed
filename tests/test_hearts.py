"""The heart monitor that beats only while an engine waits to be taken in."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING

import zmq
from ipyparallel.controller import heartmonitor
from ipyparallel.controller.hub import Hub
from zmq.eventloop.zmqstream import ZMQStream

from nbdist.launchers.host.heart_monitor import BEAT_SECONDS, beat_when_awaited
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    import pytest

HEART, LATER = b"a-heart", b"a-later-heart"


def test_a_heart_that_answers_late_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cores are short an answer may take longer than the next two beats.

    Meanwhile another heart comes, for which the beats are not begun a second time.
    """
    for owner, name in ((Hub, "register_engine"), (heartmonitor, "HeartMonitor")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    monkeypatch.setattr(Hub, "register_engine", lambda *_: None)
    beat_when_awaited()

    begun: list[bool] = []

    def new(heart: bytes) -> SimpleNamespace:
        return SimpleNamespace(incoming_registrations={heart: None})

    async def taken_in() -> list[bytes]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[list[bytes]] = loop.create_future()
        with zmq.Context() as context:
            pairs = {
                name: [ZMQStream(context.socket(kind)) for kind in kinds]
                for name, kinds in (
                    ("beats", (zmq.PUB, zmq.SUB)),
                    ("answers", (zmq.ROUTER, zmq.DEALER)),
                    ("hub", (zmq.XPUB, zmq.SUB)),
                )
            }
            pairs["answers"][1].socket.identity = HEART
            for name, (ours, theirs) in pairs.items():
                ours.socket.bind(f"inproc://{name}")
                theirs.socket.connect(f"inproc://{name}")
            for name in ("beats", "hub"):
                pairs[name][1].socket.subscribe(b"")
            answer = pairs["answers"][1].send_multipart

            def hear(beat: list[bytes]) -> None:
                if not later:
                    later.append(Hub.register_engine(new(LATER), b"", {}))
                loop.call_later(25 * BEAT_SECONDS, answer, beat)

            later: list[object] = []
            pairs["beats"][1].on_recv(hear)
            pairs["hub"][1].on_recv(told.set_result)
            monitor = heartmonitor.HeartMonitor(
                ping_stream=pairs["beats"][0],
                pong_stream=pairs["answers"][0],
                monitor_stream=pairs["hub"][0],
            )
            monitor.start()
            start = monitor.caller.start

            def begin() -> None:
                begun.append(monitor.caller.is_running())
                start()

            monkeypatch.setattr(monitor.caller, "start", begin)
            Hub.register_engine(new(HEART), b"", {})
            try:
                found = await asyncio.wait_for(told, allowed(10))
                assert LATER in monitor._awaited
                return found
            finally:
                monitor.caller.stop()
                for stream in itertools.chain(*pairs.values()):
                    stream.close(linger=0)

    assert HEART in b"".join(asyncio.run(taken_in()))
    assert begun == [False], "the beats were begun while they came"
