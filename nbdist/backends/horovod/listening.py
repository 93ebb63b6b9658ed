"""Where Horovod's servers listen; by themselves they do on every address.

These are the rendezvous server of a launcher (or of rank zero, on engines), and in each rank of an
elastic job the service that is told of hosts that come and go.
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
"""Modules of Horovod's last release that make servers, each with the same function."""


def listen_on(address: str) -> None:
    """Let servers that Horovod makes in this process from now on listen on one address only."""

    def make_there(make: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
        made = make((address, 0))
        return made, made.server_address[1]

    for name in ASKING:
        module: Any = importlib.import_module(name)
        assert module.find_port
        module.find_port = make_there
