"""The main thread's own socket: cells in, outcomes out.

It is apart from the agent's so that a cell costs no hop between threads, in a process whose
threads share one interpreter lock and, often, one core with other ranks. Main thread only.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from nbdist.wire.encoding import decode_to_agent, encode_to_hub
from nbdist.wire.framing import Stream
from nbdist.wire.messages import Hello, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from nbdist.rank.rank_spec import RankSpec
    from nbdist.wire.messages import Message


class CellSocket:
    """Runs the cells that come, one after the other.

    Parameters
    ----------
    spec
        Whose it is, and where the hub listens.
    run
        Runs a cell, and sends what came of it.
    leave
        Called when the hub has hung up. A rank that hears of no cell is none: it ends, and is
        replaced if the hub lives.
    """

    def __init__(
        self,
        spec: RankSpec,
        run: Callable[[Run], Coroutine[Any, Any, None]],
        leave: Callable[[], None],
    ) -> None:
        self._run, self._leave = run, leave
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(spec.cells)
        self._stream = Stream(sock)
        self._loop.add_reader(sock, self._receive)
        self.send(Hello(spec.rank, spec.incarnation, os.getpid(), spec.host))

    def send(self, message: Message) -> None:
        """Send to the hub, which reads at any time.

        Not while code of the user's is on the stack: an interrupt would cut the message in two.
        """
        self._stream.send_all(encode_to_hub(message))

    def _receive(self) -> None:
        for message in map(decode_to_agent, self._stream.receive()):
            if isinstance(message, Run):
                task = self._loop.create_task(self._run(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if self._stream.gone:
            self._loop.remove_reader(self._stream.socket)
            self._leave()
