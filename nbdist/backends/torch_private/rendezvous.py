"""Controls the stores that torch creates from MASTER_ADDR and MASTER_PORT; ends torch's RPC."""

from __future__ import annotations

import functools
import importlib
import socket
import sys
from typing import TYPE_CHECKING, Any

from nbdist.backends.groups import stores
from nbdist.machine import sockets

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from nbdist.backends.groups.stores import Store, TCPStore

HERE = (sockets.LOOPBACK, "localhost", socket.gethostname())
LISTEN_SECONDS = 5.0
"""How long we wait for the store of rank 0 to listen; torch itself waits after that, too."""


def _module() -> Any:
    # By its string: torch.distributed also has a function of this name.
    return importlib.import_module("torch.distributed.rendezvous")


def lead(to: Callable[[str, int, int, int, timedelta], Store | None]) -> None:
    """Let `to` choose the store for an address; where `to` returns None, torch makes one.

    Parameters
    ----------
    to
        Called with host, port, rank, number of ranks and timeout.
    """
    module = _module()
    make: Callable[..., Store] = module._create_c10d_store

    @functools.wraps(make)
    def create(
        host: str, port: int, rank: int, size: int, timeout: timedelta, *args: Any, **options: Any
    ) -> Store:
        found = to(host, port, rank, size, timeout)
        return make(host, port, rank, size, timeout, *args, **options) if found is None else found

    module._create_c10d_store = create


def keep_stores_private(*, loopback: bool) -> None:
    """Let this process's stores listen only where ranks connect; torch's default is everywhere.

    Parameters
    ----------
    loopback
        Whether all ranks are on this machine.
    """
    module = _module()
    make: Callable[..., TCPStore] = module.TCPStore

    def in_one_place(
        host_name: str, port: int, *args: Any, is_master: bool = False, **options: Any
    ) -> TCPStore:
        if is_master:
            where = sockets.LOOPBACK if loopback else host_name
            return stores.listening(make, where, host_name, port, *args, **options)
        if loopback and host_name in HERE:  # torch tries once, then waits for half a second
            limit = options.get("timeout")
            longest = LISTEN_SECONDS if limit is None else limit.total_seconds() / 2
            sockets.until_listening(port, min(LISTEN_SECONDS, longest))
        return make(host_name, port, *args, is_master=is_master, **options)

    module.TCPStore = in_one_place


def end_rpc() -> None:
    """Shut down torch's RPC after a broken cell, so that it can start on a new store. All ranks.

    RPC counts its starts and its gatherings, and ranks find each other by these numbers, which
    differ between ranks after a fault or with a new rank.
    """
    rpc: Any = sys.modules["torch.distributed.rpc"]  # `import torch` imports it
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)
    rpc._init_counter = 0
    rpc.api._all_gather_sequence_id.clear()
    rpc.api._all_gather_sequence_id_to_states.clear()
