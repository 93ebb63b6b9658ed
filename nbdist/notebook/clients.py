"""Clients of ipyparallel for a cluster's ranks; they know every rank and lose no output."""

from __future__ import annotations

import concurrent.futures
import time
from typing import TYPE_CHECKING

from nbdist.errors import LaunchError
from nbdist.job.named_ranks import name_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import ipyparallel

    from nbdist.hub.link.ranks import Rank
    from nbdist.launchers.host.engines import Host

CLIENTS, SECONDS = 10, 3.0
"""How many clients are tried, and how many seconds each waits for its engines. A client that
registers at the same moment as an engine never learns of that engine; a new client does."""
REPLACED_SECONDS = 60.0
"""The controller registers an engine after its first heartbeat, which is late on a busy host."""
LOOK_SECONDS = 0.002
ASK_SECONDS = 0.1
"""How long to wait for an engine's output before the engine is asked again."""


class ClientOfRanks:
    """The ipyparallel client of a cluster, created on first use. Any thread."""

    def __init__(self) -> None:
        self._client: ipyparallel.Client | None = None
        self._heard: set[tuple[str, int]] = set()
        """Hosts and pids of the ranks whose output has been seen to reach the client."""

    def get(self, host: Host, ranks: Sequence[Rank]) -> ipyparallel.Client:
        """Return a client that knows all these ranks and receives their output.

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
        """Close the client, if there is one; the next `get` creates a new one."""
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
    """Wait until the client knows a replaced rank; otherwise `%px` would skip the rank.

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
    """Wait until the output of all engines reaches the client, and return whether it does.

    ZeroMQ publishes to subscribers only. The subscription of a new client, and that of the
    controller to a new engine, arrive a moment later; output that an engine prints before is lost
    silently. So each engine is asked to publish a message (see `nbdist.rank.px_cells`), repeatedly,
    until one arrives. An engine whose code holds the GIL cannot answer, so the wait ends after
    `SECONDS`.
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
    """Return whether the message published for each of these requests has arrived."""
    told, until = client.metadata, time.monotonic() + ASK_SECONDS
    while not (heard := all(told[request]["stdout"] for request in asked)):
        if time.monotonic() > until:
            break
        time.sleep(LOOK_SECONDS)
    for request in asked:
        told.pop(request, None)
    return heard
