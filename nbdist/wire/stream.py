"""Messages on a stream socket, each with its length before it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

HEAD_BYTES = 4
MAX_MESSAGE = 256 * 2**20
"""Bytes; whoever announces more is not one of ours."""
ROOM = 1 << 16


class Stream:
    """One end of a connection; the socket must not block."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._inbox = bytearray()
        self._outbox = bytearray()

    def received(self) -> Iterator[bytes]:
        """Return the messages that have come, without waiting.

        Raises
        ------
        OSError
            If the other end has gone, or is none of ours.
        """
        gone = False
        with contextlib.suppress(BlockingIOError):
            while not gone:
                data = self.socket.recv(ROOM)
                self._inbox += data
                gone = not data
                if len(data) < ROOM:
                    break
        yield from self._whole()
        if gone:
            raise ConnectionResetError

    def _whole(self) -> Iterator[bytes]:
        inbox = self._inbox
        while len(inbox) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(inbox[:HEAD_BYTES], "big")
            if end > MAX_MESSAGE:
                raise ConnectionAbortedError
            if len(inbox) < end:
                return
            message = bytes(inbox[HEAD_BYTES:end])
            del inbox[:end]
            yield message

    def send(self, message: bytes) -> bool:
        """Send a message as far as there is room; return whether nothing is left to be sent.

        Raises
        ------
        OSError
            If the other end has gone.
        """
        self._outbox += len(message).to_bytes(HEAD_BYTES, "big") + message
        return self.flush()

    def flush(self) -> bool:
        """Send of what is left as much as there is room for; see `send`."""
        with contextlib.suppress(BlockingIOError):
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]
        return not self._outbox
