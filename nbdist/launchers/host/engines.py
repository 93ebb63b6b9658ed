"""The persistent cluster: ipyparallel's controller, and engines forked from the warm process.

The controller is the real one and the engines register with it, so `ipyparallel.Client` and `%px`
work on them. It is started without `ipyparallel.Cluster`, whose import and polling the kernel
would pay for and whose launchers add a process for every engine. Hub's thread only.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nbdist.errors import LaunchError
from nbdist.launchers.host.protocol import (
    CONTROLLER,
    Died,
    End,
    Preload,
    Preloaded,
    Refused,
    Signal,
    StartController,
    Started,
    StartLauncher,
    StartRank,
    Warm,
)
from nbdist.launchers.host.warm_process import WarmProcess, tail_in_words
from nbdist.machine import leftovers
from nbdist.machine.amounts import in_time
from nbdist.rank.rank_spec import RankSpec
from nbdist.settings import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.backends.groups.recovery import Recovery
    from nbdist.wire.channel import Keys

CONTROLLER_SECONDS = 120.0
"""For the controller to come up, and for it to hear a new engine's heart; its death is known at
once."""
LONGEST_TEMP = 60
"""Bytes of a folder in which sockets can lie: the system takes a path of about 100."""
AGAIN_SECONDS = 180.0
"""Imports that went well before have this long in a new warm process."""
CONTROLLER_STARTS = 3
NOT_TAKEN_IN = "Registration timed out"
"""How ipyparallel's engine tells that; the controller knows why."""
_numbers = itertools.count(1)


class Host:
    """Our machine's warm process and controller, in one private folder.

    Parameters
    ----------
    home
        Holds that folder.
    tell
        Hears of ranks and of the controller.
    controller
        Whether there is one; scripts do without.
    """

    def __init__(
        self,
        home: Path,
        tell: Callable[[Started | Died | Refused], None],
        *,
        controller: bool = True,
    ) -> None:
        self.id = secrets.token_hex(4)
        self.folder = home / "clusters" / self.id
        self.profile = self.folder / "profile"
        # In the temp folder and with a short name, since a socket's path must be short.
        temp = tempfile.gettempdir()
        short = len(os.fsencode(temp)) < LONGEST_TEMP
        self.temp = Path(temp if short else "/tmp", f"nbd-{self.id}")  # noqa: S108
        make_folder(self.folder)
        # Signed before anything else is made: whoever comes later knows then what to clear.
        leftovers.sign(self.folder, str(self.temp))
        self.temp.mkdir(mode=0o700)
        make_folder(self.profile / "security")
        leftovers.clear(home / "clusters")
        self._base_environ = dict(os.environ)
        self._seen_environ = _raw_environ()
        self._changed: dict[str, str | None] = {}
        self._tell = tell
        self.scripts: set[Callable[[str], None]] = set()
        """Stop the scripts whose launchers are children of the warm process."""
        self._launchers: dict[str, Callable[[Started | Died | Refused], None]] = {}
        self.warm = WarmProcess(
            self.folder / "warm.log", [self.folder, self.temp], self._hear, self.id
        )
        self.controller_died: Died | Refused | None = None
        self._controller_starts = 0
        self._engine_info = ""
        if controller:
            self._start_controller()

    def _hear(self, word: Started | Died | Refused) -> None:
        if isinstance(word, (Died, Refused)) and word.name == CONTROLLER:
            self.controller_died = word
        if word.name in self._launchers:
            self._launchers[word.name](word)
        else:
            self._tell(word)

    def _start_controller(self) -> None:
        args = [
            f"--profile-dir={self.profile}",
            f"--cluster-id={self.id}",
            "--ip=127.0.0.1",
            "--location=127.0.0.1",
            "--IPController.use_threads=True",
            "--log-level=30",
            f"--IPController.registration_timeout={CONTROLLER_SECONDS:.0f}",
            # Registration waits for a beat, see `hearts`; deaths we see ourselves, at once, so that
            # a frozen engine need never be given up.
            "--HeartMonitor.period=100",
            "--HeartMonitor.max_heartmonitor_misses=1000000",
        ]
        environ = {"IPP_CLUSTER_ID": self.id, "IPP_PROFILE_DIR": str(self.profile)}
        self._controller_starts += 1
        log, ready = str(self._controller_log), str(self._controller_ready)
        self.warm.order(StartController(args, environ, log, ready))

    def _has_lost_a_port(self) -> bool:
        """Whether the controller ended because another program has taken a port that it chose.

        ipyparallel looks for free ports first and binds them later.
        """
        log = self._controller_log
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return self.controller_died is not None and os.strerror(errno.EADDRINUSE) in text

    def _start_controller_again(self) -> None:
        self.controller_died = None
        said = (self.connection_file(kind) for kind in ("client", "engine"))
        for path in (self._controller_log, self._controller_ready, *said):
            path.unlink(missing_ok=True)
        self._start_controller()

    @property
    def _controller_log(self) -> Path:
        return self.folder / "controller.log"

    @property
    def _controller_ready(self) -> Path:
        return self.folder / "controller.ready"

    def log_in_words(self, rank: int) -> str:
        """Return the end of a rank's log as a clause for an error message.

        Where the controller did not take the rank in, its log has the reason.
        """
        words = tail_in_words(self.folder / f"rank{rank}.log")
        if NOT_TAKEN_IN in words:
            words += f"\nipyparallel's controller did not answer; {self.controller_log_in_words()}"
        return words

    def controller_log_in_words(self) -> str:
        """Return the end of the controller's log as a clause for an error message."""
        return tail_in_words(self._controller_log)

    @property
    def cells(self) -> Path:
        """Path of the hub's socket for cells."""
        return self.temp / "cells"

    def connection_file(self, kind: str) -> Path:
        """Return the file of ipyparallel's connection info for `engine` or `client`."""
        return self.profile / "security" / f"ipcontroller-{self.id}-{kind}.json"

    async def engine_info(self) -> str:
        """Wait for the controller and return what engines need to find it.

        Raises
        ------
        LaunchError
            If the controller did not come up, or has died since.
        """
        if self._engine_info:
            self.check_controller()
            return self._engine_info
        log = self._controller_log
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONTROLLER_SECONDS
        while loop.time() < deadline:
            if self._controller_starts < CONTROLLER_STARTS and self._has_lost_a_port():
                self._start_controller_again()
            if self.controller_died is not None or self.warm.gone.is_set():
                msg = f"ipyparallel's controller ended at its start; {tail_in_words(log)}"
                raise LaunchError(msg)
            if self._controller_ready.exists():
                self._engine_info = self.connection_file("engine").read_text(encoding="utf-8")
                return self._engine_info
            await asyncio.sleep(0.01)
        msg = (
            f"ipyparallel's controller was not there after {in_time(CONTROLLER_SECONDS)}; "
            f"{tail_in_words(log)}"
        )
        raise LaunchError(msg)

    def check_controller(self) -> None:
        """Raise `LaunchError` if the controller that was there has died. Any thread."""
        who = "warm process" if self.warm.gone.is_set() else "ipyparallel controller"
        if self.controller_died is not None or self.warm.gone.is_set():
            msg = (
                f"the {who} of this cluster has died; without it %px does not work and no rank can "
                "be started. `%dist restart` restarts the whole cluster."
            )
            raise LaunchError(msg)

    async def ready(self) -> Warm:
        """Wait until ranks can be started."""
        return await asyncio.shield(self.warm.warm)

    def environ_changes(self) -> dict[str, str | None]:
        """Return what the notebook has changed in its environment since the host was started."""
        raw = _raw_environ()
        if raw != self._seen_environ:
            now, base = dict(os.environ), self._base_environ
            changed = {k for k in now.keys() | base.keys() if now.get(k) != base.get(k)}
            # What was changed back is told too: ranks hold the value in between.
            self._changed = {name: now.get(name) for name in changed | self._changed.keys()}
            self._seen_environ = raw
        return self._changed

    async def preload(self, modules: list[str], limit: float) -> Preloaded:
        """Have the warm process import modules, if that does no harm; see its answer."""
        order = Preload(
            next(_numbers), modules, _import_path(), self.environ_changes(), limit, tried=False
        )
        return await self.warm.preload(order)

    def preload_again(self, modules: list[str]) -> None:
        """Have a new warm process import what another one has; ranks ordered later wait for it."""
        self.warm.order(
            Preload(next(_numbers), modules, _import_path(), {}, AGAIN_SECONDS, tried=True)
        )

    def start_rank(self, spec: RankSpec) -> None:
        """Fork a rank; `tell` hears how it went."""
        self.warm.order(StartRank(spec))

    def start_launcher(
        self, order: StartLauncher, tell: Callable[[Started | Died | Refused], None]
    ) -> None:
        """Start a script's launcher; `tell` hears how it went, and of its end."""
        self._launchers[order.name] = tell
        self.warm.order(order)

    def forget_launcher(self, name: str) -> None:
        """Listen no more to what is told of a launcher."""
        self._launchers.pop(name, None)

    def signal(self, pid: int, signum: int) -> None:
        """Signal a process of this host."""
        self.warm.order(Signal(pid, signum))

    def end(self, pid: int, grace: float) -> None:
        """End a process of this host and its session."""
        self.warm.order(End(pid, grace))

    async def forget_engine(self, rank: int) -> None:
        """Tell the controller that an engine is gone, as ipyparallel's nanny would."""
        await asyncio.to_thread(_unregister, self.connection_file("engine"), rank)

    def abandon(self) -> None:
        """Let the warm process end everything; it removes the folders, too, if it lives."""
        self.warm.abandon()
        if self.warm.gone.is_set():
            self._remove_folders()

    async def stop(self) -> None:
        """End the controller and all ranks; remove the folder."""
        await self.warm.stop()
        self._remove_folders()

    def _remove_folders(self) -> None:
        for folder in (self.temp, self.folder):  # what is signed last: it names the other
            shutil.rmtree(folder, ignore_errors=True)


def _unregister(connection_file: Path, rank: int) -> None:
    import zmq
    from jupyter_client.session import Session  # only when a rank was replaced

    info = json.loads(connection_file.read_text(encoding="utf-8"))
    session = Session(
        key=info["key"].encode(), signature_scheme=info["signature_scheme"], packer=info["pack"]
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.linger = 1000
        sock.connect(f"{info['interface']}:{info['registration']}")
        session.send(sock, "unregistration_request", content={"id": rank})


def _raw_environ() -> dict[bytes, bytes]:
    """Return a copy of the environment as the system holds it.

    Every cell looks for a change: decoding all variables for that would take as long as all else
    the hub does for it.
    """
    return dict(vars(os.environ)["_data"])


def _import_path() -> list[str]:
    return [entry or working_directory() for entry in sys.path]


def working_directory() -> str:
    """Return the notebook's working directory, '' if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def make_specs(
    host: Host, ranks: list[int], size: int, *, incarnations: dict[int, int], backend: str,
    recovery: Recovery, url: str, keys: Keys, engine: str, environ: dict[str, str],
) -> list[RankSpec]:  # fmt: skip
    """Describe ranks of this host."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return [
        RankSpec(
            rank=rank,
            local_rank=rank,
            world_size=size,
            local_world_size=size,
            host=socket.gethostname(),
            incarnation=incarnations.get(rank, 0),
            backend=backend,
            recovery=recovery,
            url=url,
            keys=keys,
            cells=str(host.cells),
            folder=str(host.folder),
            temp=str(host.temp),
            engine=engine,
            profile_dir=str(host.profile),
            cluster_id=host.id,
            cwd=working_directory(),
            environ=environ,
            threads=max(1, cores // size),
        )
        for rank in ranks
    ]
