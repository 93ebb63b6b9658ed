"""Makes Horovod's servers listen on one address instead of on all addresses.

These servers are the rendezvous server of a launcher (or of rank 0, on engines) and, in each rank
of an elastic job, the service that is notified of added and removed hosts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ASKING = (
    "horovod.runner.util.network",
    "horovod.runner.common.util.network",
    "horovod.runner.http.http_server",
)
"""Modules of Horovod's last release that start servers, each with a function `find_port`."""


def listen_on(address: str) -> None:
    """Let Horovod's servers in this process listen on this address only, from now on."""

    def make_there(make: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
        made = make((address, 0))
        return made, made.server_address[1]

    for name in ASKING:
        module: Any = importlib.import_module(name)
        assert module.find_port
        module.find_port = make_there
