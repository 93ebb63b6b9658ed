"""Sets Keras' layer counts to the same values on all ranks, so that layers get equal names.

Keras names a layer ``dense_4`` after four earlier ones, and Horovod matches variables by name.
Without equal counts, a model created after a rank's replacement has other names on this rank, and
the ranks wait for each other forever.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import sys
import time
from typing import Any

from nbdist.machine.amounts import in_seconds

MODULES = ("keras.src.backend", "keras.backend")
"""The modules of Keras 2 that hold the counts, by release."""
SECONDS = 10.0
SCOPE = "/nbdist-names"
NOT_FOUND = 404

Counts = dict[Any, int]


def agree(rank: int, size: int) -> None:
    """Set the highest counts of all ranks, by the rendezvous server; every rank must call it."""
    with contextlib.closing(_server()) as server:
        _put(server, str(rank), _counts())
        if rank == 0:
            most: Counts = {}
            for each in range(size):
                for name, count in _get(server, str(each), each).items():
                    most[name] = max(count, most.get(name, 0))
            _put(server, "most", most)
        else:
            most = _get(server, "most", 0)
    if most:
        importlib.import_module("keras")
        sys.modules[_module()].get_default_graph_uid_map().update(most)


def _module() -> str:
    """Return the module that holds Keras' counts; '' if Keras was not imported."""
    return next((name for name in MODULES if name in sys.modules), "")


def _counts() -> Counts:
    return dict(sys.modules[_module()].get_default_graph_uid_map()) if _module() else {}


def _server() -> http.client.HTTPConnection:
    host = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    return http.client.HTTPConnection(host, port, timeout=SECONDS)


def _put(server: http.client.HTTPConnection, key: str, counts: Counts) -> None:
    pairs = [[name if isinstance(name, str) else list(name), n] for name, n in counts.items()]
    server.request("PUT", f"{SCOPE}/{key}", json.dumps(pairs).encode())
    server.getresponse().read()


def _get(server: http.client.HTTPConnection, key: str, rank: int) -> Counts:
    """Wait for the counts that this rank publishes under this key."""
    until = time.monotonic() + SECONDS
    while True:
        server.request("GET", f"{SCOPE}/{key}")
        answer = server.getresponse()
        data = answer.read()
        if answer.status != NOT_FOUND:
            break
        if time.monotonic() > until:
            raise TimeoutError(
                f"rank {rank} has not sent its counts of Keras' layer names within "
                f"{in_seconds(SECONDS)}"
            )
        time.sleep(0.01)
    return {name if isinstance(name, str) else tuple(name): n for name, n in json.loads(data)}
