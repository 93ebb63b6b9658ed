"""The hubs of a process: one is prepared before its cluster; all end with the process."""

from __future__ import annotations

import contextlib
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


class Hubs:
    """The living hubs, and the prepared one. Any thread except the hub's, unless stated."""

    def __init__(self) -> None:
        self._living: list[Hub] = []
        """Written by the hub's thread."""
        self._preparing: Future[Hub] | None = None
        self.preloaded: list[str] = []
        """Modules that every warm process of this notebook imports. Written by the hub's thread."""

    def prepare(self) -> None:
        """Start the warm process and the controller before the first cluster.

        This waits only until both processes are started, since later the hub's thread would have to
        share the GIL with the caller. `take` raises an error of this start.
        """
        if self._preparing is None:
            self._preparing = hub_loop().soon(self._new())
            wait([self._preparing], START_SECONDS)

    async def _new(self) -> Hub:
        hub = Hub(Settings.read())
        self._living.append(hub)
        if self.preloaded:
            hub.host.preload_again(self.preloaded)
        return hub

    def take(self) -> Hub:
        """Return a hub for a cluster: the prepared one if it works, else a new one."""
        preparing, self._preparing = self._preparing, None
        hub = None
        if preparing is not None:
            # An error is raised below, unless its cause has disappeared.
            with contextlib.suppress(NbdistError):
                hub = preparing.result()
        if hub is not None and hub.host.warm.gone.is_set():
            self.release(hub)
        # A hub whose warm process runs scripts is left to them: a cluster may end before they do.
        elif hub is not None and not hub.host.scripts:
            return hub
        return hub_loop().wait(self._new())

    def hosts(self) -> list[Host]:
        """Return all hosts with a living warm process. Hub's thread."""
        return [hub.host for hub in self._living if not hub.host.warm.gone.is_set()]

    def host(self) -> Host:
        """Return a warm process: any cluster's, or the prepared one."""
        for hub in self._living:
            if not hub.host.warm.gone.is_set():
                return hub.host
        if self._preparing is not None and self._preparing.done():
            self.drop_prepared()  # it has died
        self.prepare()
        assert self._preparing is not None
        return self._preparing.result().host

    def release(self, hub: Hub) -> None:
        """End a hub and everything that it has started."""
        self._living.remove(hub)
        hub_loop().wait(hub.stop())

    def drop_prepared(self) -> None:
        """End the prepared hub."""
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            with contextlib.suppress(NbdistError):
                self.release(preparing.result())

    def abandon(self) -> None:
        """Leave all hubs as the process exits: their processes end by themselves."""
        if self._preparing is not None:
            with contextlib.suppress(Exception):  # its start failed: nothing to end
                self._preparing.result(EXIT_SECONDS)
        for hub in self._living:
            hub.host.abandon()
