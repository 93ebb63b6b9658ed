"""CurveZMQ sockets: encrypted, and open only to the keys of this cluster."""

from __future__ import annotations

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

MAX_MESSAGE = 256 * 2**20
"""Bytes; a larger message is refused by the socket itself."""
HANDSHAKE_SECONDS = 5
"""A connection that has not proved its key after so long is closed."""


class Keys(msgspec.Struct, frozen=True):
    """Key pairs of one cluster; every cluster has new ones, which are never written to disk."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def new(cls) -> Keys:
        """Make new pairs."""
        return cls(*zmq.curve_keypair(), *zmq.curve_keypair())


class _KnownClient:
    """Lets in exactly one public key (pyzmq's credentials provider protocol)."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether `key` (in Z85) may connect."""
        del domain
        return key == self._public


class Listener:
    """The hub's end: a ROUTER on a free port, with the thread that checks keys."""

    def __init__(self, keys: Keys, host: str = "127.0.0.1") -> None:
        # A context of our own: the authenticator answers for every socket of its context.
        self._context = zmq.Context()
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(
            domain="*", credentials_provider=_KnownClient(keys.client_public)
        )
        sock = self._context.socket(zmq.ROUTER)
        sock.curve_server = True
        sock.curve_publickey, sock.curve_secretkey = keys.server_public, keys.server_secret
        _bound(sock)
        # A send to a rank that has gone raises, instead of being dropped silently.
        sock.router_mandatory = True
        self.url = f"tcp://{host}:{sock.bind_to_random_port(f'tcp://{host}')}"
        self.socket = sock

    def close(self) -> None:
        """Free the port and end both threads."""
        self.socket.close(0)
        self._auth.stop()
        self._context.destroy(0)


def connect(
    context: zmq.Context[zmq.Socket[bytes]], url: str, keys: Keys, identity: bytes
) -> zmq.Socket[bytes]:
    """Make a rank's end: a DEALER that speaks with the hub at `url`."""
    sock = context.socket(zmq.DEALER)
    sock.identity = identity
    sock.curve_serverkey = keys.server_public
    sock.curve_publickey, sock.curve_secretkey = keys.client_public, keys.client_secret
    _bound(sock)
    sock.connect(url)
    return sock


def _bound(sock: zmq.Socket[bytes]) -> None:
    sock.linger = 0
    sock.maxmsgsize = MAX_MESSAGE
    sock.handshake_ivl = HANDSHAKE_SECONDS * 1000
    # No message is dropped: the queues have no limit, the two ends limit what they send.
    sock.sndhwm = sock.rcvhwm = 0
