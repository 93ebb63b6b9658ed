"""Clients of ipyparallel for a cluster's ranks; they know every rank and lose no output."""

from __future__ import annotations

import concurrent.futures
import time
from typing import TYPE_CHECKING

from nbdist.errors import LaunchError
from nbdist.job.job import name_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import ipyparallel

    from nbdist.hub.link.ranks import Rank
    from nbdist.launchers.host.engines import Host

CLIENTS, SECONDS = 10, 3.0
"""How often, and how long, a client waits for its engines. One that comes just when an engine does
is neither told of it nor finds it among those that are there: only another one will."""
REPLACED_SECONDS = 60.0
"""The controller takes an engine in when its heart has answered: late, where the host is busy."""
LOOK_SECONDS = 0.002
ASK_SECONDS = 0.1
"""How long an engine's answer may take on its way, before it is asked again."""


class ClientOfRanks:
    """The one client of a cluster's ranks, made when somebody first asks for it. Any thread."""

    def __init__(self) -> None:
        self._client: ipyparallel.Client | None = None
        self._heard: set[tuple[str, int]] = set()
        """Hosts and pids of the ranks whose output is known to reach the client."""

    def get(self, host: Host, ranks: Sequence[Rank]) -> ipyparallel.Client:
        """Return a client that knows all these ranks and hears what they print.

        Raises
        ------
        LaunchError
            If ipyparallel's controller has died, or has lost ranks.
        """
        host.check_controller()
        if self._client is None:
            self._client = connect(host.connection_file("client"), len(ranks))
            self._heard = set()
        elif len(self._client.ids) < len(ranks):
            wait_for_replaced(self._client, len(ranks))
        processes = {(rank.host, rank.pid) for rank in ranks}
        if processes != self._heard and hears(self._client):
            self._heard = processes
        return self._client

    def close(self) -> None:
        """Close the client, if there is one; the next `get` makes another."""
        if self._client is not None:
            self._client.close()
            self._client = None


def connect(connection_file: Path, np: int) -> ipyparallel.Client:
    """Return a client that knows all `np` engines."""
    import ipyparallel  # half a second, and few need it

    for left in reversed(range(CLIENTS)):
        client = ipyparallel.Client(str(connection_file))
        try:
            client.wait_for_engines(np, timeout=SECONDS, interactive=False)
        except TimeoutError:
            client.close()
            if not left:
                raise
        else:
            break
    return client


def wait_for_replaced(client: ipyparallel.Client, np: int) -> None:
    """Wait for a rank that was replaced just now: without it `%px` would leave it out.

    Raises
    ------
    LaunchError
        If the controller does not tell of it.
    """
    try:
        client.wait_for_engines(np, timeout=REPLACED_SECONDS, interactive=False)
    except TimeoutError:
        there = name_ranks(client.ids)
        raise LaunchError(
            f"ipyparallel's controller knows only {there} of {np}: `%dist restart` restarts "
            "the whole cluster"
        ) from None


def hears(client: ipyparallel.Client) -> bool:
    """Wait until what all engines publish reaches the client, and return whether it does.

    ZeroMQ sends to those who have subscribed. A client's subscription is on its way to the
    controller when the client is there already, and the controller's to a new engine; what an
    engine prints until then is lost, and nobody is told. So each engine is asked to publish
    something (see `nbdist.rank.px_cells`), until it arrives.

    An engine whose code does not let go of the GIL cannot answer: no more than `SECONDS`.
    """
    deadline = time.monotonic() + SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            replies = client.send_signal(0, block=False).result(left)
        except concurrent.futures.TimeoutError:
            return False
        if _has_heard(client, [reply["parent_header"]["msg_id"] for reply in replies]):
            return True
    return False


def _has_heard(client: ipyparallel.Client, asked: list[str]) -> bool:
    """Return whether what was published for each of these requests has arrived."""
    told, until = client.metadata, time.monotonic() + ASK_SECONDS
    while not (heard := all(told[request]["stdout"] for request in asked)):
        if time.monotonic() > until:
            break
        time.sleep(LOOK_SECONDS)
    for request in asked:
        told.pop(request, None)
    return heard
