"""The main thread's own socket: cells in, rich displays and outcomes out.

It is apart from the agent's so that a cell costs no hop between threads, in a process whose
threads share one interpreter lock and, often, one core with other ranks. Main thread only; what
other threads of the user's display goes through the agent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import zmq

from nbdist.wire import channel
from nbdist.wire.messages import Hello, Run, decode_to_agent, encode_to_hub

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from nbdist.rank.spec import RankSpec
    from nbdist.wire.messages import Done, Message


class CellSocket:
    """Runs the cells that come, one after the other."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        spec: RankSpec,
        run: Callable[[Run], Coroutine[Any, Any, Done]],
        elsewhere: Callable[[Message], None],
    ) -> None:
        self._run, self._elsewhere = run, elsewhere
        self._main = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sock = channel.connect(context, spec.url, spec.keys, spec.identity + channel.CELLS)
        self._sock.send(encode_to_hub(Hello(spec.rank, spec.incarnation, os.getpid(), spec.host)))
        self._loop.add_reader(self._sock.FD, self._pump)
        # The descriptor tells of news only to one who has found nothing before.
        self._loop.call_soon(self._pump)

    def send(self, message: Message) -> None:
        """Send to the hub. Any thread."""
        if threading.get_ident() != self._main:
            self._elsewhere(message)
            return
        self._sock.send(encode_to_hub(message))
        # The descriptor is edge-triggered: a send may swallow the edge of an arrival.
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        while True:
            try:
                message = decode_to_agent(self._sock.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            if isinstance(message, Run):
                task = self._loop.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, run: Run) -> None:
        self.send(await self._run(run))
