"""The hubs of this process: one prepared ahead of its cluster, all ended with the process."""

from __future__ import annotations

import atexit
import contextlib
import os
from concurrent.futures import wait
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.hub.hub import Hub
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.settings import Settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from nbdist.launchers.host.engines import Host

EXIT_SECONDS = 3.0
START_SECONDS = 1.0

_living: list[Hub] = []
preloaded: list[str] = []
"""Modules that every warm process of this notebook imports. The hub's thread writes."""
_preparing: Future[Hub] | None = None


def prepare() -> None:
    """Start the warm process and the controller ahead of the first cluster.

    They come up by themselves. Only until they are started this waits: the hub's thread would have
    to share Python's lock with whatever the caller does next. What goes wrong is told by `take`.
    """
    global _preparing  # there is one to come
    if _preparing is None:
        _preparing = hub_loop().soon(_new())
        wait([_preparing], START_SECONDS)


async def _new() -> Hub:
    hub = Hub(Settings.read())
    _living.append(hub)
    if preloaded:
        hub.host.preload_again(preloaded)
    return hub


def take() -> Hub:
    """Return a hub for a cluster: the prepared one if it is well, else a new one."""
    global _preparing  # see prepare
    preparing, _preparing = _preparing, None
    hub = None
    if preparing is not None:
        with contextlib.suppress(NbdistError):  # told below, unless its cause has gone meanwhile
            hub = preparing.result()
    if hub is not None and hub.host.warm.gone.is_set():
        release(hub)
    # One whose warm process runs scripts is left to them: a cluster may end before they do.
    elif hub is not None and not hub.host.scripts:
        return hub
    return hub_loop().wait(_new())


def hosts() -> list[Host]:
    """Return all that have a living warm process. Hub's thread."""
    return [hub.host for hub in _living if not hub.host.warm.gone.is_set()]


def host() -> Host:
    """Return a machine's warm process: any cluster's, or the one prepared for the next."""
    for hub in _living:
        if not hub.host.warm.gone.is_set():
            return hub.host
    if _preparing is not None and _preparing.done():
        drop_prepared()  # it has died since
    prepare()
    assert _preparing is not None
    return _preparing.result().host


def release(hub: Hub) -> None:
    """End a hub and all it has started."""
    _living.remove(hub)
    hub_loop().wait(hub.stop())


def drop_prepared() -> None:
    """End what was prepared and not taken."""
    global _preparing  # see prepare
    preparing, _preparing = _preparing, None
    if preparing is not None:
        with contextlib.suppress(NbdistError):
            release(preparing.result())


def _at_exit(pid: int = os.getpid()) -> None:
    # A fork of the notebook's kernel runs this too; the hubs are not its own.
    if os.getpid() != pid:
        return
    if _preparing is not None:
        with contextlib.suppress(Exception):  # it did not come up: nothing to end
            _preparing.result(EXIT_SECONDS)
    for hub in _living:
        hub.host.abandon()


atexit.register(_at_exit)
