"""The hub's end of the cell sockets: sends cells to ranks, receives their outcomes. Hub's thread.

Unix sockets in the cluster's private folder, since its ranks are on this machine. The wire's have a
thread at each end, which encrypts besides: each message wakes two more threads, and where there
are many ranks these take the cores from them.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from nbdist.wire.framing import Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST_WAITING = 4096
"""The listen backlog: how many ranks may connect at once."""
AGAIN_SECONDS = 0.5
"""The pause before accepting again, after an error for too many open files."""


class CellSockets:
    """Accepts the connections of ranks' main threads.

    Parameters
    ----------
    path
        The socket's path, in a folder that only this user can access.
    hear
        Called with a connection and a message.
    """

    def __init__(self, path: Path, hear: Callable[[Stream, bytes], None]) -> None:
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._streams: set[Stream] = set()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.setblocking(False)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen(MOST_WAITING)
        self._listen()

    def _listen(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError:
            self._loop.remove_reader(self._listening)
            self._loop.call_later(AGAIN_SECONDS, self._listen)
            return
        stream = Stream(sock)
        self._streams.add(stream)
        self._loop.add_reader(sock, self._receive, stream)

    def _receive(self, stream: Stream) -> None:
        messages = stream.receive()
        if stream.gone:
            self.drop(stream)
        for message in messages:
            self._hear(stream, message)

    def send(self, stream: Stream, message: bytes) -> None:
        """Send a message; errors are ignored, as the death of a rank is noticed elsewhere."""
        if stream in self._streams and not stream.send(message):
            self._loop.add_writer(stream.socket, self._flush, stream)
        if stream.gone:
            self.drop(stream)

    def _flush(self, stream: Stream) -> None:
        if stream.flush():
            self._loop.remove_writer(stream.socket)
        if stream.gone:
            self.drop(stream)

    def drop(self, stream: Stream) -> None:
        """Close a connection."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._loop.remove_reader(stream.socket)
            self._loop.remove_writer(stream.socket)
            stream.socket.close()

    def close(self) -> None:
        """Close all connections; the folder is removed with the cluster."""
        for stream in list(self._streams):
            self.drop(stream)
        self._loop.remove_reader(self._listening)
        self._listening.close()
