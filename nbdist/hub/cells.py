"""The hub's end of the ranks' cell sockets: cells out, outcomes in. Hub's thread only.

Unix sockets in the cluster's private folder, since its ranks are on this machine. The wire's have a
thread at each end, which encrypts besides: each message wakes two more threads, and where there
are many ranks these take the cores from them.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from nbdist.wire.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST_WAITING = 4096
"""Ranks that may knock at once."""


class CellSockets:
    """Takes the connections of ranks' main threads.

    Parameters
    ----------
    path
        The socket's, in a folder of this user's alone.
    hear
        Called with a connection and a message.
    """

    def __init__(self, path: Path, hear: Callable[[Stream, bytes], None]) -> None:
        self.path = str(path)
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._streams: set[Stream] = set()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.setblocking(False)
        self._listening.bind(self.path)
        path.chmod(0o600)
        self._listening.listen(MOST_WAITING)
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError:  # it has gone again, or there are too many open files
            return
        sock.setblocking(False)
        stream = Stream(sock)
        self._streams.add(stream)
        self._loop.add_reader(sock, self._receive, stream)

    def _receive(self, stream: Stream) -> None:
        try:
            for message in stream.received():
                self._hear(stream, message)
        except OSError:
            self.drop(stream)

    def send(self, stream: Stream, message: bytes) -> None:
        """Send a message; to a rank that has gone nothing is sent, its death is told elsewhere."""
        try:
            if not stream.send(message):
                self._loop.add_writer(stream.socket, self._flush, stream)
        except OSError:
            self.drop(stream)

    def _flush(self, stream: Stream) -> None:
        try:
            if stream.flush():
                self._loop.remove_writer(stream.socket)
        except OSError:
            self.drop(stream)

    def drop(self, stream: Stream) -> None:
        """Close a connection."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._loop.remove_reader(stream.socket)
            self._loop.remove_writer(stream.socket)
            stream.socket.close()

    def close(self) -> None:
        """Close all of them; the folder goes with its cluster."""
        for stream in list(self._streams):
            self.drop(stream)
        self._loop.remove_reader(self._listening)
        self._listening.close()
