"""The warm process of a host: it has imported torch, forks ranks, and cleans up after them.

Run as ``python -m nbdist.launchers.warm FD KERNEL_PID FOLDER...``; the folders are removed at its
end. It is also the supervisor: each rank is its own session, a death is seen at once, what the
rank left (DataLoader workers) is killed with it, and when the kernel is gone everything ends.

One thread, no torch operation, no zmq context, no store: whatever would not survive a fork must
never happen here. Children are tied to this thread by PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbdist.errors import NbdistError
from nbdist.launchers import scripted, supervised
from nbdist.launchers.supervised import (
    LAUNCHER,
    LENGTH,
    Died,
    End,
    Refused,
    Signal,
    StartController,
    Started,
    StartLauncher,
    StartRank,
    Warm,
    Word,
)
from nbdist.rank.spec import CLUSTER_NAME
from nbdist.system import (
    adopt_orphans,
    die_with_parent,
    kill_session,
    oom_kills,
    private,
    reseed,
    torch_version,
    why_not_fork,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.rank.spec import RankSpec

LOOK_SECONDS = 1.0
"""How often the kernel is looked for besides its end of the socket being watched."""
END_SECONDS = 1.5
"""From SIGTERM to SIGKILL when the kernel has gone."""


class Supervisor:
    """Starts, watches and ends the processes of one host."""

    def __init__(self, sock: socket.socket, kernel: int, folders: list[str]) -> None:
        self._sock = sock
        self._folders = folders
        self._kernel = kernel
        self._inbox = b""
        self._names: dict[int, str] = {}
        self._oom_before: dict[int, int] = {}
        self._kill_at: dict[int, float] = {}
        self._ready = False
        self._plain = ""
        self._waiting: list[StartRank | StartLauncher] = []
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    # -- the loop ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Follow orders until the kernel is gone, then end everything."""
        while os.getppid() == self._kernel:
            wait = LOOK_SECONDS
            if self._kill_at:
                wait = max(
                    0.0, min(*self._kill_at.values(), time.monotonic() + wait) - time.monotonic()
                )
            sock = self._sock.fileno()
            ready, _, _ = select.select([sock, self._wake], [], [], wait)
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
            self._kill_overdue()
            if sock in ready and not self._read_orders():
                break
        self._end_all()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def warm_up(self, preload: list[str]) -> None:
        """Import what ranks need; orders that came meanwhile are followed afterwards."""
        for name in preload:
            # Without torch its backend refuses in its own words; ranks of `none` need neither.
            with contextlib.suppress(ImportError, NbdistError):
                importlib.import_module(name)
        self._plain = why_not_fork()
        # The forked ranks share these objects' pages as long as no collection touches them.
        gc.collect()
        gc.freeze()
        self._ready = True
        self.tell(Warm(os.getpid(), torch_version(), self._plain))
        for order in self._waiting:
            self._follow(order)

    def _read_orders(self) -> bool:
        """Read and follow what came; False when the kernel's end is closed."""
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            return False
        self._inbox += data
        while len(self._inbox) >= LENGTH:
            end = LENGTH + int.from_bytes(self._inbox[:LENGTH], "big")
            if len(self._inbox) < end:
                break
            order = supervised.decode_order(self._inbox[LENGTH:end])
            self._inbox = self._inbox[end:]
            self._follow(order)
        return bool(data)

    def read_early(self) -> None:
        """Follow the orders that lie there already, without waiting."""
        while select.select([self._sock], [], [], 0)[0] and self._read_orders():
            pass

    def _follow(self, order: StartController | StartRank | StartLauncher | Signal | End) -> None:
        if isinstance(order, StartController):
            self._start("controller", lambda: _be_controller(order))
        elif isinstance(order, StartRank | StartLauncher) and not self._ready:
            self._waiting.append(order)
        elif isinstance(order, StartLauncher):
            self._start_launcher(order)
        elif isinstance(order, StartRank):
            self._start_rank(order)
        elif order.pid not in self._names:
            return  # it has ended; the number may be somebody else's by now
        elif isinstance(order, Signal):
            os.kill(order.pid, order.signum)
        else:
            os.kill(order.pid, signal.SIGTERM)
            self._kill_at[order.pid] = time.monotonic() + order.grace

    def tell(self, word: Word) -> None:
        """Say something to the kernel, which may be gone."""
        with contextlib.suppress(OSError):
            self._sock.sendall(supervised.pack(word))

    # -- births --------------------------------------------------------------------------------

    def _start_rank(self, order: StartRank) -> None:
        spec = order.spec
        name = f"rank {spec.rank}.{spec.incarnation}"
        self._plain = self._plain or why_not_fork(canary=False)

        def body() -> None:
            from nbdist.rank import engine  # imported while warming up

            engine.main(spec)

        if self._plain:
            self._start_fresh(name, spec)
        else:
            self._start(name, body)

    def _start_launcher(self, order: StartLauncher) -> None:
        self._plain = self._plain or why_not_fork(canary=False)
        cold = order.cold or bool(self._plain)
        launcher = scripted.launcher(order.module)
        if not cold:
            # Here and not in the child, so that the next one has it too.
            for name in launcher.WARM:
                with contextlib.suppress(Exception):  # whoever needs it says what is wrong
                    importlib.import_module(name)

        def body() -> None:
            _settle_in(order)
            if cold:
                os.execv(sys.executable, launcher.command(order.arguments, order.program))  # noqa: S606
            launcher.launch(order.arguments, order.program)

        self._start(order.name, body)

    def _start(self, name: str, body: Callable[[], None]) -> None:
        oom = oom_kills()
        try:
            pid = os.fork()
        except OSError as err:
            self.tell(Refused(name, f"fork failed: {err}"))
            return
        if pid == 0:
            self._become_child()
            code = 1
            try:
                body()
                code = 0
            except SystemExit as end:  # argparse has said why
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
                if isinstance(end.code, str):
                    sys.stderr.write(f"{end.code}\n")
            except BaseException:  # a child must never run on in our loop
                sys.excepthook(*sys.exc_info())
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        self._born(name, pid, oom)

    def _start_fresh(self, name: str, spec: RankSpec) -> None:
        """Start a rank as a fresh Python process, where forking is not safe."""
        oom = oom_kills()
        with open(Path(spec.folder, f"rank{spec.rank}.log"), "ab", opener=private) as log:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "nbdist.rank.engine"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # we have one thread
            )
        assert process.stdin is not None
        process.stdin.write(supervised.encode(spec))
        process.stdin.close()
        # We reap it ourselves, by pid; Popen must not.
        process.returncode = 0
        self._born(name, process.pid, oom)

    def _born(self, name: str, pid: int, oom: int) -> None:
        self._names[pid] = name
        self._oom_before[pid] = oom
        self.tell(Started(name, pid, psutil.Process(pid).create_time()))

    def _become_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(self._wake)
        self._sock.close()
        os.setsid()
        die_with_parent()
        reseed()

    # -- deaths --------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                # Look before reaping: until then the pid, and so the session's number, is ours.
                gone = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if gone is None:
                return
            kill_session(gone.si_pid)
            os.waitpid(gone.si_pid, 0)
            self._kill_at.pop(gone.si_pid, None)
            name = self._names.pop(gone.si_pid, None)
            if name is not None and name.startswith(LAUNCHER):
                _kill_workers(name.removeprefix(LAUNCHER))
            if name is not None:
                by_signal = gone.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
                oom = oom_kills() > self._oom_before.pop(gone.si_pid)
                signum, code = (gone.si_status, 0) if by_signal else (0, gone.si_status)
                self.tell(Died(name, gone.si_pid, signum, code, oom and signum == signal.SIGKILL))

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, at in self._kill_at.items() if at <= now]:
            del self._kill_at[pid]
            if pid in self._names:
                kill_session(pid)

    def _end_all(self) -> None:
        for pid in self._names:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while self._names and time.monotonic() < deadline:
            select.select([self._wake], [], [], max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            self._reap()
        for pid in self._names:
            kill_session(pid)
        # What left its session (a daemon of a daemon) has become our child: we are its reaper.
        for orphan in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()


def _kill_workers(token: str) -> None:
    """Kill what a launcher has left: its workers may have sessions of their own."""
    for orphan in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if orphan.environ().get(CLUSTER_NAME) == token:
                orphan.kill()


def _settle_in(order: StartLauncher) -> None:
    """Make a forked process the launcher's: its place, environment and output."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(order.cwd)
    for name, value in order.environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _be_controller(order: StartController) -> None:
    os.umask(0o077)  # of what ipyparallel writes, only some is private by itself
    os.environ.update(order.environ)
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from ipyparallel.controller.app import IPController  # imported before the fork

    # Its heart monitor is a process of its own, which would not see that everybody has been killed.
    os.register_at_fork(after_in_child=die_with_parent)
    IPController.launch_instance(order.args)


def main() -> None:
    """Become the warm process."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    supervisor = Supervisor(sock, kernel=int(sys.argv[2]), folders=sys.argv[3:])
    adopt_orphans()
    # The kernel's own Ctrl-C in a terminal is for the kernel; it tells us what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The controller is forked before torch is imported: it shares what engines import anyway, and
    # comes up on another core meanwhile.
    for name in ("nbdist.rank.engine", "ipyparallel.controller.app"):
        importlib.import_module(name)
    supervisor.read_early()
    supervisor.warm_up(["torch.distributed", "nbdist.backends.ddp"])
    supervisor.serve()


if __name__ == "__main__":
    main()
