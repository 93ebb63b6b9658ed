"""Torch's key-value stores (TCPStore), through which ranks find each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed import (  # type: ignore[attr-defined]  # they are documented there
    PrefixStore,
    Store,
    TCPStore,
)

from nbdist.machine import sockets

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

__all__ = ["Store", "TCPStore", "connect", "listening", "prefixed", "serve"]


def serve(host: str) -> TCPStore:
    """Start a store on a free port of `host` only; torch's default is every address."""
    return listening(TCPStore, host, host, 0, wait_for_workers=False)


def listening(
    make: Callable[..., TCPStore], host: str, name: str, port: int, *args: Any, **options: Any
) -> TCPStore:
    """Make a store that listens on `host` only; clients find it under the host name `name`."""
    with sockets.listen(host, port) as listener:
        port = listener.getsockname()[1]
        descriptor = listener.detach()  # the store closes it
    return make(name, port, *args, is_master=True, master_listen_fd=descriptor, **options)


def connect(host: str, port: int, limit: timedelta) -> TCPStore:
    """Return a client of a store, with a connection of its own."""
    return TCPStore(host, port, is_master=False, timeout=limit)


def prefixed(prefix: str, store: Store) -> Store:
    """Return a view of a store that puts `prefix` before all keys."""
    return PrefixStore(prefix, store)
