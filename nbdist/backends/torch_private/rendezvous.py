"""Stores that torch makes of what the environment says, and RPC, which begins on one of them."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from nbdist.backends.stores import Store


def lead(to: Callable[[str, int, int, int, timedelta], Store | None]) -> None:
    """Let `to` say which store is found at an address; torch makes one where it returns None.

    Parameters
    ----------
    to
        Called with host, port, rank, number of ranks and timeout.
    """
    # Of that name torch.distributed has a function, too.
    module: Any = importlib.import_module("torch.distributed.rendezvous")
    make: Callable[..., Store] = module._create_c10d_store

    @functools.wraps(make)
    def create(
        host: str, port: int, rank: int, size: int, timeout: timedelta, *args: Any, **options: Any
    ) -> Store:
        found = to(host, port, rank, size, timeout)
        return make(host, port, rank, size, timeout, *args, **options) if found is None else found

    module._create_c10d_store = create


def end_rpc() -> None:
    """End what a broken cell has left of RPC, so that it can begin on a fresh store. All ranks.

    It counts how often it has begun and how often ranks have gathered, and they find each other by
    these numbers: after a fault, or with a rank that is new, they would differ.
    """
    rpc: Any = sys.modules.get("torch.distributed.rpc")
    if rpc is None:
        return
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)
    rpc._init_counter = 0
    rpc.api._all_gather_sequence_id.clear()
    rpc.api._all_gather_sequence_id_to_states.clear()
