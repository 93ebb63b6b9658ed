"""Messages on a stream socket, each after its length."""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

HEAD_BYTES = 4
MAX_MESSAGE = 256 * 2**20
"""Bytes; a peer that announces more is not nbdist."""
ROOM = 1 << 16


class Stream:
    """One end of a connection.

    Parameters
    ----------
    sock
        Its socket, which is made non-blocking.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.name = b""
        """The name of the other end, once it is known."""
        self.gone = False
        """Whether the other end has gone, or is not nbdist."""
        self._inbox = bytearray()
        self._outbox = bytearray()

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived, without waiting, even if the other end is gone."""
        try:
            while data := self.socket.recv(ROOM):
                self._inbox += data
            self.gone = True
        except BlockingIOError:
            pass
        except OSError:
            self.gone = True
        return list(self._whole())

    def _whole(self) -> Iterator[bytes]:
        at, inbox = 0, self._inbox
        while len(inbox) - at >= HEAD_BYTES:
            begin = at + HEAD_BYTES
            size = int.from_bytes(inbox[at:begin], "big")
            if size > MAX_MESSAGE:
                self.gone = True
                break
            if len(inbox) < begin + size:
                break
            at = begin + size
            yield bytes(inbox[begin:at])
        del inbox[:at]

    def send(self, message: bytes) -> bool:
        """Send as much of a message as the socket takes; return whether nothing is left to send.

        If the other end has gone, nothing is sent.
        """
        self._outbox += len(message).to_bytes(HEAD_BYTES, "big") + message
        return self.flush()

    def send_all(self, message: bytes) -> None:
        """Send a message, and wait until the socket has taken all of it; see `send`."""
        room = select.poll()
        room.register(self.socket, select.POLLOUT)
        sent = self.send(message)
        while not sent:
            room.poll()
            sent = self.flush()

    def flush(self) -> bool:
        """Send as much of the rest as the socket takes; see `send`."""
        try:
            with contextlib.suppress(BlockingIOError):
                while self._outbox:
                    del self._outbox[: self.socket.send(self._outbox)]
        except OSError:
            self.gone = True
            self._outbox.clear()
        return not self._outbox
