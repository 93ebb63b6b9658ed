"""Torch's key-value stores, through which ranks find each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed import (  # type: ignore[attr-defined]  # they are documented there
    PrefixStore,
    Store,
    TCPStore,
)

from nbdist.backends import sockets

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["Store", "TCPStore", "connect", "prefixed", "serve"]


def serve(host: str) -> TCPStore:
    """Start a store on a free port of `host`. By itself torch would listen on every address."""
    with sockets.listen(host) as listener:
        return TCPStore(
            host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # the store closes it in the end
        )


def connect(host: str, port: int, limit: timedelta) -> TCPStore:
    """Return a client of a store, with a connection of its own."""
    return TCPStore(host, port, is_master=False, timeout=limit)


def prefixed(prefix: str, store: Store) -> Store:
    """Return a store whose keys are apart from those with other prefixes."""
    return PrefixStore(prefix, store)
