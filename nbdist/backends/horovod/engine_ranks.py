"""Horovod in a rank of the persistent engines: join the others, free it from them, join again.

Horovod's own shutdown frees whoever waits in one of its collectives, from any thread, and after it
``hvd.init()`` works again. Ranks find each other through Horovod's rendezvous server, a fresh one
for each generation, in rank zero. What a user keeps trains on: models hold nothing of Horovod's,
and its optimizers are brought to rest.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.backends.horovod import calls, listening
from nbdist.backends.models.variable_paths import has
from nbdist.errors import UsageError
from nbdist.machine import sockets

if TYPE_CHECKING:
    from nbdist.wire.group_reports import Digest, GroupInfo, Waiting

SHUTDOWN_SECONDS = 2.0
"""A shutdown that waits longer for a rank that does not answer goes on by itself."""
FRAMEWORK = "NBDIST_HOROVOD"
"""Environment name: ``tensorflow`` takes that where Horovod is there for torch, too."""
MODULES = {"torch": "Torch", "tensorflow": "TensorFlow"}


class Framework(Protocol):
    """What differs between those that Horovod has a part for; see `horovod_torch`."""

    hvd: Any

    def device(self, local_rank: int) -> Any: ...
    def install(self) -> None: ...
    def settle(self, *, first: bool) -> None: ...
    def checksums(self, namespace: dict[str, object]) -> dict[str, Digest]: ...
    def weigh(self, namespace: dict[str, object]) -> int: ...
    def sync(
        self, namespace: dict[str, object], path: str, source: int, group: str = ""
    ) -> None: ...


def parts() -> list[str]:
    """Return the names of the frameworks that Horovod was built for; nothing is imported."""
    spec = importlib.util.find_spec("horovod")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    # The one for torch can be imported without it, and lacks everything.
    return [name for name in MODULES if any(_libraries(place, name) for place in places)]


def _libraries(place: str, name: str) -> list[Path]:
    return list(Path(place, name).glob("mpi_lib*.so"))


def framework() -> str:
    """Return the name of the framework that is here and has Horovod's part for it, imported.

    Raises
    ------
    UsageError
        If there is none.
    """
    named, built = os.environ.get(FRAMEWORK), parts()
    if named is not None and named not in MODULES:
        raise UsageError(f"{FRAMEWORK}={named}: there are {', '.join(MODULES)}")
    problems = []
    for name in [named] if named else MODULES:
        if name not in built:
            problems.append(f"horovod.{name}: it was not built")
            continue
        try:
            importlib.import_module(name)
            importlib.import_module(f"horovod.{name}")
        except ImportError as err:
            problems.append(f"horovod.{name}: {err}")
        else:
            return name
    raise UsageError(
        f"--backend horovod needs Horovod, which cannot be imported here ({'; '.join(problems)}). "
        "To build it: python -m nbdist.install horovod"
    )


class Horovod:
    """The ``horovod`` backend of one rank.

    `form` and `sync` belong to the main thread, the rest to any.

    Parameters
    ----------
    rank, local_rank, world_size
        This rank's place.
    """

    name = "horovod"

    def __init__(self, *, rank: int, local_rank: int, world_size: int) -> None:
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size
        name = framework()
        module = importlib.import_module(f"nbdist.backends.horovod.for_{name}")
        self._framework: Framework = getattr(module, MODULES[name])()
        self.hvd = self._framework.hvd
        self._watch = calls.Watch()
        self._server: Any = None
        self.broken_off: set[str] = set()
        """Stays empty: what Horovod breaks off raises."""
        self._joined = False
        """Whether ``hvd.init()`` was ever called."""

    def device(self) -> Any:
        """Return this rank's device, made the current one if it is a GPU."""
        return self._framework.device(self.local_rank)

    def names(self) -> dict[str, Any]:
        """Return what a cell finds defined: `hvd`, as in a script."""
        return {"hvd": self.hvd}

    def install(self) -> None:
        """Watch the optimizers that are made; once, before any cell."""
        self._framework.install()

    def open_store(self) -> int:
        """Start the next generation's rendezvous server; return its port. Called on one rank."""
        http: Any = importlib.import_module("horovod.runner.http.http_server")
        hosts: Any = importlib.import_module("horovod.runner.common.util.hosts")
        listening.listen_on(sockets.LOOPBACK)
        before, self._server = self._server, http.RendezvousServer()
        port: int = self._server.start()
        slots = hosts.parse_hosts(f"localhost:{self.world_size}")
        self._server.init(hosts.get_host_assignments(slots, self.world_size))
        if before is not None:  # nobody uses it, or those who do are to be freed
            threading.Thread(target=_close, args=(before,), daemon=True).start()
        return port

    def form(
        self,
        port: int,
        generation: int,
        way: str = "",
        namespace: dict[str, object] | None = None,
        *,
        fsdp: str = "",
    ) -> dict[str, str]:
        """Join the others through the server at this port. All ranks at once."""
        del way, namespace, fsdp  # there is one, and nothing is lost by it
        if self._joined:
            self.abort()
        os.environ.update(self._environ(port))
        self._joined = True
        self.hvd.init()
        self._framework.settle(first=generation == 1)
        return {}

    def _environ(self, port: int) -> dict[str, str]:
        """Return what horovodrun would set for this rank."""
        interface = sockets.loopback_interface()
        names = {
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_RANK": self.rank,
            "HOROVOD_SIZE": self.world_size,
            "HOROVOD_LOCAL_RANK": self.local_rank,
            "HOROVOD_LOCAL_SIZE": self.world_size,
            "HOROVOD_CROSS_RANK": 0,
            "HOROVOD_CROSS_SIZE": 1,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": sockets.LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": interface,
            "NCCL_SOCKET_IFNAME": interface,
        }
        return {name: str(value) for name, value in names.items()}

    def meet_at(self, port: int) -> None:
        """Do nothing: what a cell makes of the environment is its own."""

    def abort(self) -> None:
        """Free this rank: whatever of it waits in a collective raises.

        Shutting down is something that all ranks agree on, so one that is frozen holds it up; the
        thread that asks for it must not be.
        """
        thread = threading.Thread(target=self.hvd.shutdown, name="nbdist-shutdown", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_SECONDS)

    def goes_on_when_freed(self) -> bool:
        """Return False: what Horovod breaks off raises."""
        return False

    def formed(self) -> bool:
        """Return whether Horovod is initialised; it is not after `abort` or the user's shutdown."""
        return self._joined and bool(self.hvd.is_initialized())

    def groups(self) -> list[GroupInfo]:
        """Return no groups: those of Horovod's are its own."""
        return []

    def waiting(self) -> Waiting | None:
        """Return the collective the main thread is inside, or None. Any one other thread."""
        return self._watch.look()

    def checksums(self, namespace: dict[str, object]) -> dict[str, Digest]:
        """Return digests of what this rank trains, by how variables lead to it."""
        return self._framework.checksums(namespace)

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        return self._framework.weigh(namespace)

    def sharers(self, namespace: dict[str, object], path: str) -> list[int] | None:
        """Return no ranks, for all share everything; None if the path leads to nothing."""
        return [] if has(namespace, path) else None

    def sync(self, namespace: dict[str, object], path: str, source: int, group: str = "") -> None:
        """Make what a path leads to what it is on rank `source`. All ranks at once."""
        self._framework.sync(namespace, path, source, group)


def _close(server: Any) -> None:
    server.stop()
    server._httpd.server_close()  # noqa: SLF001  # its own stop leaves the socket open
