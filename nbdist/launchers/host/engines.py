"""A persistent cluster on this machine: warm process, ipyparallel's controller and engines.

The engines are forked from the warm process, and register with ipyparallel's own controller, so
`ipyparallel.Client` and `%px` work on them. `ipyparallel.Cluster` is not used: its import and its
polling would slow down the kernel, and its launchers add a process for every engine. Hub's thread
only.
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
from nbdist.launchers.host.warm_process_client import WarmProcess, tail_in_words
from nbdist.launchers.rank_counts import core_count
from nbdist.machine import leftovers
from nbdist.machine.amounts import in_time
from nbdist.rank.rank_spec import RankSpec
from nbdist.settings import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.backends.groups.recovery import Recovery
    from nbdist.wire.channel import Keys

CONTROLLER_SECONDS = 120.0
"""Time limit for the controller to start, and to register a new engine. Its death is noticed at
once."""
LONGEST_TEMP = 60
"""The longest path, in bytes, of a folder for sockets: the system's limit for a socket is about
100."""
AGAIN_SECONDS = 180.0
"""Time limit for imports that need no trial."""
NEED_NO_TRIAL = frozenset({"torch._dynamo", "torch.distributed.fsdp"})
"""Modules that are known to be harmless in the warm process: those of torch that trainings need."""
CONTROLLER_STARTS = 3
NOT_TAKEN_IN = "Registration timed out"
"""The message of an ipyparallel engine that was not registered; the controller's log says why."""
_numbers = itertools.count(1)


class Host:
    """The warm process and controller of this machine and controller, with their private folder.

    Parameters
    ----------
    home
        The folder in which the private folder is made.
    tell
        Called with messages about ranks and the controller.
    controller
        Whether to start a controller; scripts do not need it.
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
        # In the temp folder and with a short name, because a socket's path must be short.
        temp = tempfile.gettempdir()
        short = len(os.fsencode(temp)) < LONGEST_TEMP
        self.temp = Path(temp if short else "/tmp", f"nbd-{self.id}")  # noqa: S108
        make_folder(self.folder)
        # Signed first, so that a later kernel knows what to clear.
        leftovers.sign(self.folder, str(self.temp))
        self.temp.mkdir(mode=0o700)
        make_folder(self.profile / "security")
        leftovers.clear(home / "clusters")
        self._base_environ = dict(os.environ)
        self._seen_environ = _raw_environ()
        self._changed: dict[str, str | None] = {}
        self._tell = tell
        self.scripts: set[Callable[[], None]] = set()
        """Functions that stop the scripts whose launchers are children of the warm process."""
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
            # Registration needs a beat, see `heart_monitor`. We notice deaths ourselves, at once,
            # so the controller never has to declare a frozen engine dead.
            "--HeartMonitor.period=100",
            "--HeartMonitor.max_heartmonitor_misses=1000000",
        ]
        environ = {"IPP_CLUSTER_ID": self.id, "IPP_PROFILE_DIR": str(self.profile)}
        self._controller_starts += 1
        log, ready = str(self._controller_log), str(self._controller_ready)
        self.warm.order(StartController(args, environ, log, ready))

    def _has_lost_a_port(self) -> bool:
        """Whether the controller ended because another program took one of its ports.

        ipyparallel chooses free ports first and binds them later.
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

        If the controller did not register the rank, the controller's log is added.
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
        """The path of the hub's socket for cells."""
        return self.temp / "cells"

    def connection_file(self, kind: str) -> Path:
        """Return the file of ipyparallel's connection info for `engine` or `client`."""
        return self.profile / "security" / f"ipcontroller-{self.id}-{kind}.json"

    async def engine_info(self) -> str:
        """Wait for the controller; return the connection info for engines.

        Raises
        ------
        LaunchError
            If the controller did not start, or has died since.
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
            f"ipyparallel's controller did not start within {in_time(CONTROLLER_SECONDS)}; "
            f"{tail_in_words(log)}"
        )
        raise LaunchError(msg)

    def check_controller(self) -> None:
        """Raise `LaunchError` if the controller or the warm process has died. Any thread."""
        who = "warm process" if self.warm.gone.is_set() else "ipyparallel controller"
        if self.controller_died is not None or self.warm.gone.is_set():
            msg = (
                f"the {who} of this cluster has died; without it %px does not work and no rank can "
                "be started. `%dist restart` restarts the whole cluster."
            )
            raise LaunchError(msg)

    async def ready(self) -> Warm:
        """Wait until the warm process can start ranks."""
        return await asyncio.shield(self.warm.warm)

    def environ_changes(self) -> dict[str, str | None]:
        """Return the variables that the notebook has changed since this host was started."""
        raw = _raw_environ()
        if raw != self._seen_environ:
            now, base = dict(os.environ), self._base_environ
            changed = {k for k in now.keys() | base.keys() if now.get(k) != base.get(k)}
            # Also variables that were changed back: ranks have the value in between.
            self._changed = {name: now.get(name) for name in changed | self._changed.keys()}
            self._seen_environ = raw
        return self._changed

    async def preload(self, modules: list[str], limit: float) -> Preloaded:
        """Let the warm process import modules; the answer says whether this succeeded.

        Modules that are not all in `NEED_NO_TRIAL` are first tried in a fork. The others have
        `AGAIN_SECONDS` at least: an import that is given up here leaves its package half imported.
        """
        tried = NEED_NO_TRIAL.issuperset(modules)
        order = Preload(
            next(_numbers), modules, _import_path(), self.environ_changes(),
            max(limit, AGAIN_SECONDS) if tried else limit, tried,
        )  # fmt: skip
        return await self.warm.preload(order)

    def preload_again(self, modules: list[str]) -> None:
        """Let a new warm process import an earlier one's modules; later ranks wait for this."""
        self.warm.order(
            Preload(next(_numbers), modules, _import_path(), {}, AGAIN_SECONDS, tried=True)
        )

    def start_rank(self, spec: RankSpec) -> None:
        """Fork a rank; the result is passed to `tell`."""
        self.warm.order(StartRank(spec))

    def start_launcher(
        self, order: StartLauncher, tell: Callable[[Started | Died | Refused], None]
    ) -> None:
        """Start a script's launcher; its start and its end are passed to `tell`."""
        self._launchers[order.name] = tell
        self.warm.order(order)

    def forget_launcher(self, name: str) -> None:
        """Stop passing on messages about a launcher."""
        self._launchers.pop(name, None)

    def signal(self, pid: int, signum: int) -> None:
        """Signal a process of this host."""
        self.warm.order(Signal(pid, signum))

    def end(self, pid: int, grace: float) -> None:
        """End a process of this host and its session."""
        self.warm.order(End(pid, grace))

    async def forget_engine(self, rank: int) -> None:
        """Inform the controller that an engine has ended, as ipyparallel's nanny does."""
        await asyncio.to_thread(_unregister, self.connection_file("engine"), rank)

    def abandon(self) -> None:
        """Let the warm process end everything and remove the folders, if it is alive."""
        self.warm.abandon()
        if self.warm.gone.is_set():
            self._remove_folders()

    async def stop(self) -> None:
        """End the controller and all ranks; remove the folders."""
        await self.warm.stop()
        self._remove_folders()

    def _remove_folders(self) -> None:
        for folder in (self.temp, self.folder):  # the signed folder last: it names the other one
            shutil.rmtree(folder, ignore_errors=True)


def _unregister(connection_file: Path, rank: int) -> None:
    import zmq
    from jupyter_client.session import Session  # needed only after a rank was replaced

    info = json.loads(connection_file.read_text(encoding="utf-8"))
    session = Session(
        key=info["key"].encode(), signature_scheme=info["signature_scheme"], packer=info["pack"]
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.linger = 1000
        sock.connect(f"{info['interface']}:{info['registration']}")
        session.send(sock, "unregistration_request", content={"id": rank})


def _raw_environ() -> dict[bytes, bytes]:
    """Return a copy of the environment as bytes.

    Every cell compares it: decoding all variables would double the hub's time for a cell.
    """
    return dict(vars(os.environ)["_data"])


def _import_path() -> list[str]:
    return [entry or working_directory() for entry in sys.path]


def working_directory() -> str:
    """Return the notebook's working directory; '' if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def make_specs(
    host: Host, ranks: list[int], size: int, *, incarnations: dict[int, int], backend: str,
    recovery: Recovery, url: str, keys: Keys, engine: str, environ: dict[str, str],
) -> list[RankSpec]:  # fmt: skip
    """Return the specifications of ranks on this host."""
    threads = max(1, core_count() // size)
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
            threads=threads,
        )
        for rank in ranks
    ]
