"""The ``horovod`` backend of a persistent rank: initialize Horovod, interrupt it, start it again.

Horovod's own shutdown, from any thread, ends every wait in its collectives, and ``hvd.init()``
works again afterwards. Ranks find each other through Horovod's rendezvous server, which rank 0
starts again for each generation. Models and optimizers train on: models hold nothing of Horovod,
and Horovod's optimizers are reset.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.backends.horovod import calls, listening
from nbdist.backends.models.variable_paths import at, has
from nbdist.errors import UsageError
from nbdist.machine import sockets
from nbdist.wire.group_reports import Standing

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbdist.wire.group_reports import Digest, GroupInfo, Outline, Waiting

SHUTDOWN_SECONDS = 2.0
"""How long `abort` waits for the shutdown, which then goes on in its own thread."""
FRAMEWORK = "NBDIST_HOROVOD"
"""Environment variable: ``tensorflow`` chooses TensorFlow if Horovod was built for both."""
MODULES = {"torch": "Torch", "tensorflow": "TensorFlow"}


class Framework(Protocol):
    """The part of the backend that depends on the framework; see `for_torch`."""

    hvd: Any

    def device(self, local_rank: int) -> Any: ...
    def install(self) -> None: ...
    def settle(self, *, first: bool) -> None: ...
    def begin(self, namespace: dict[str, object], job: str) -> None: ...
    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str] = (), *, every: bool = True
    ) -> dict[str, Digest]: ...
    def weigh(self, namespace: dict[str, object]) -> int: ...
    def outline(self, thing: Any) -> Outline: ...
    def sync(self, thing: Any, source: int) -> None: ...


def parts() -> list[str]:
    """Return the names of the frameworks that Horovod was built for, without importing them."""
    spec = importlib.util.find_spec("horovod")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    # Without its library ``horovod.torch`` can be imported, but contains nothing.
    return [name for name in MODULES if any(_libraries(place, name) for place in places)]


def _libraries(place: str, name: str) -> list[Path]:
    return list(Path(place, name).glob("mpi_lib*.so"))


def framework() -> str:
    """Import the framework that is installed and that Horovod supports; return its name.

    Raises
    ------
    UsageError
        If there is no such framework.
    """
    named, built = os.environ.get(FRAMEWORK), parts()
    if named is not None and named not in MODULES:
        raise UsageError(f"{FRAMEWORK}={named} is none of {', '.join(MODULES)}")
    problems = []
    for name in [named] if named else MODULES:
        if name not in built:
            problems.append(f"horovod.{name}: Horovod was built without it")
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

    `form` and `sync` belong to the main thread; any thread may call the other methods.

    Parameters
    ----------
    rank, local_rank, world_size
        This rank's place among all ranks and on its host.
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
        """Stays empty: a collective that Horovod ends raises."""
        self.reset: dict[str, str] = {}
        """Stays empty: what Horovod's optimizers keep belongs to the step that was interrupted."""
        self._joined = False
        """Whether ``hvd.init()`` was ever called."""

    def device(self) -> Any:
        """Return this rank's device; a GPU becomes the current one."""
        return self._framework.device(self.local_rank)

    def names(self) -> dict[str, Any]:
        """Return the names that are defined for a cell: `hvd`, as in a script."""
        return {"hvd": self.hvd}

    def install(self) -> None:
        """Register the optimizers that are created; once, before any cell."""
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
        if before is not None:  # no rank uses it, or `abort` ends the rank's wait there
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
        """Join the other ranks through the server at this port; every rank must call it."""
        del way, namespace, fsdp  # Horovod has one way to recover, and no variable is lost
        if self._joined:
            self.abort()
        os.environ.update(self._environ(port))
        self._joined = True
        self.hvd.init()
        self._framework.settle(first=generation == 1)
        return {}

    def _environ(self, port: int) -> dict[str, str]:
        """Return the environment that horovodrun would set for this rank."""
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
        """Do nothing: Horovod does not use MASTER_PORT."""

    def begin(self, namespace: dict[str, object], job: str) -> None:
        """Begin to note what a cell does."""
        self._framework.begin(namespace, job)

    def settle(self, namespace: dict[str, object], broken_in: str) -> Standing:
        """Return that something may be broken: Horovod does not tell."""
        del namespace, broken_in
        return Standing(broken=True)

    def works(self) -> bool:
        """Return whether Horovod is initialized; it cannot be tried without a collective."""
        return self.formed()

    def abort(self) -> None:
        """Free this rank: its waits in collectives raise. Any thread.

        A shutdown needs the agreement of all ranks, so a frozen rank delays it; it has a thread of
        its own, so that the calling thread is not delayed, too.
        """
        thread = threading.Thread(target=self.hvd.shutdown, name="nbdist-shutdown", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_SECONDS)

    def refuse(self) -> None:
        """Let no collective begin until the ranks join again. Main thread."""
        if self._joined:
            self.abort()

    def admit(self) -> None:
        """Do nothing: the ranks join again before the next cell."""

    def goes_on_when_freed(self) -> bool:
        """Return False: a collective that Horovod ends raises."""
        return False

    def formed(self) -> bool:
        """Return whether Horovod is initialized: not after `abort` or the user's shutdown."""
        return self._joined and bool(self.hvd.is_initialized())

    def groups(self) -> list[GroupInfo]:
        """Return no groups: Horovod manages its own."""
        return []

    def waiting(self) -> Waiting | None:
        """Return the collective in which the main thread is, or None. One polling thread."""
        return self._watch.look()

    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str] = (), *, every: bool = True
    ) -> dict[str, Digest]:
        """Return digests of the models and optimizers of this rank, by their variables' paths."""
        return self._framework.checksums(namespace, jobs, every=every)

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        return self._framework.weigh(namespace)

    def outline(self, namespace: dict[str, object], path: str) -> Outline | None:
        """Return the outline of the object at `path`; None if the path does not exist."""
        return self._framework.outline(at(namespace, path)) if has(namespace, path) else None

    def sync(self, namespace: dict[str, object], path: str, source: int, group: str = "") -> None:
        """Copy the object at `path` from rank `source`; every rank must call it."""
        del group  # all ranks share it
        self._framework.sync(at(namespace, path), source)


def _close(server: Any) -> None:
    server.stop()
    server._httpd.server_close()  # noqa: SLF001  # `stop` leaves the socket open
