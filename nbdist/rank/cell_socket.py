"""The main thread's own socket: cells in, outcomes out.

The agent has another socket, so that a cell needs no switch between threads: the threads of a rank
share one interpreter lock and, often, one core with other ranks. Main thread only.
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
    """Receives cells and runs them, one after the other.

    Parameters
    ----------
    spec
        The rank, and the path where the hub listens.
    run
        Runs a cell, and sends its result.
    leave
        Called when the hub has closed the connection. Without it a rank gets no cells: it ends, and
        the hub, if alive, replaces it.
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
        """Send a message to the hub, which always reads.

        Must not be called while user code is on the stack: an interrupt could leave half a message.
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
