"""The main program of the warm process: it imports torch, forks ranks and supervises them.

It is run as ``python -m nbdist.launchers.host.warm_process FD KERNEL_PID FOLDER...``, and removes
these folders at its end. When the kernel has ended, the supervisor ends all its children and
itself.

It must do nothing that does not survive a fork: it has one thread, runs no torch operation, and
opens no zmq context and no store.
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
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING

from nbdist.backends.groups.recovery import Recovery
from nbdist.errors import NbdistError
from nbdist.launchers.host import child_bodies, protocol
from nbdist.launchers.host.child_processes import Children
from nbdist.launchers.host.preloads import Preloads, threads_left
from nbdist.launchers.host.protocol import (
    CONTROLLER,
    LENGTH,
    End,
    Preload,
    Preloaded,
    Probed,
    Refused,
    Signal,
    StartController,
    StartLauncher,
    StartRank,
    StopPreload,
    Warm,
    Word,
)
from nbdist.launchers.host.recovery_probe import Probing
from nbdist.launchers.scripts import launcher
from nbdist.machine.operating_system import (
    adopt_orphans,
    be_killed_before_parent,
    torch_version,
    why_not_fork,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbdist.launchers.host.protocol import Order
    from nbdist.rank.rank_spec import RankSpec

RANKS_IMPORT = (
    "IPython.core.completerlib", "IPython.core.logger", "IPython.core.oinspect",
    "IPython.extensions.storemagic", "sqlite3", "tornado.locks", "tornado.platform.asyncio",
    "tornado.queues",
)  # fmt: skip
"""Modules that every engine imports at its start, imported here once for all."""
DDP_IMPORTS = (
    "nbdist.backends.ddp.renew_in_place", "nbdist.backends.torch_private.renew_models",
    "nbdist.backends.torch_private.rendezvous", "nbdist.backends.torch_private.timed_waits",
)  # fmt: skip
"""Modules that ranks with a process group import, after torch."""
HOROVOD = "nbdist.backends.horovod.preload_framework"
LOOK_SECONDS = 1.0
"""How often we check that the kernel is alive, besides watching its socket."""


class Supervisor:
    """Executes the kernel's orders on one host."""

    def __init__(self, sock: socket.socket, kernel: int, folders: list[str]) -> None:
        self._sock = sock
        self._folders = folders
        self._kernel = kernel
        self._inbox = b""
        self._children = Children(sock, self.tell)
        self._preloads = Preloads(self._children, self.tell, self._settle)
        self._probing = Probing(self._children, lambda found: self.tell(Probed(found)), folders[-1])
        self._ready = False
        self._plain = ""
        self._waiting: list[Order] = []

    # -- the loop ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Execute orders until the kernel has ended, then end everything."""
        while os.getppid() == self._kernel:
            now, sock = time.monotonic(), self._sock.fileno()
            due = min(
                now + LOOK_SECONDS, self._children.next_kill(), self._preloads.until(),
                self._probing.until(),
            )  # fmt: skip
            watched = [sock, self._children.wake]
            watched += [*self._preloads.watched(), *self._probing.watched()]
            ready, _, _ = select.select(watched, [], [], max(0.0, due - now))
            for look in (self._children.look, self._preloads.look, self._probing.look):
                with _going_on():
                    look()
            if sock in ready and not self._read_orders():
                break
        self._end()

    def _end(self) -> None:
        self._children.end_all()
        for folder in reversed(self._folders):  # the signed folder last: it names the others
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def leaving_with_kernel(self) -> Iterator[None]:
        """End with the kernel also during long imports, while `serve` does not run.

        The body may be ended at any point.
        """

        def look(*_: object) -> None:
            if os.getppid() != self._kernel:
                self._end()
                os._exit(0)

        signal.signal(signal.SIGALRM, look)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def warm_up(self, modules: list[str]) -> None:
        """Import the modules that ranks need, then execute the orders that came meanwhile."""
        with self.leaving_with_kernel():
            self._import(modules)
            self._settle()
            self._probing.begin(fork=not self._plain)
        self._ready = True
        recovery = self._probing.found or Recovery()
        self.tell(Warm(os.getpid(), torch_version(), self._plain, recovery))
        for order in self._waiting:
            with _going_on():
                self._follow(order)

    def _import(self, modules: list[str]) -> None:
        before = tempfile.gettempdir()
        tempfile.tempdir = self._folders[-1]  # removed with the cluster
        for name in modules:
            # A missing torch is reported by its backend, and the backend `none` needs no torch.
            # Private parts that this torch lacks are reported by the probe.
            with contextlib.suppress(ImportError, AttributeError, NbdistError):
                importlib.import_module(name)
        with contextlib.suppress(Exception):  # no torch, or an unknown release
            from nbdist.backends.torch_private import releases

            releases.import_what_leaves_folders()
        tempfile.tempdir = before

    def _settle(self) -> str:
        """Prepare for forks after imports; return why forks cannot be ranks, or ''."""
        self._plain = self._plain or why_not_fork()
        # Exclude all present objects from garbage collection, here and in forks: a collection would
        # write to their memory pages, and so copy them in each fork. A collection before this would
        # free little, and take longer than starting a rank.
        gc.freeze()
        gc.enable()
        return self._plain

    def _read_orders(self) -> bool:
        """Read and execute orders; return False when the kernel has closed its end."""
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            return False
        self._inbox += data
        while len(self._inbox) >= LENGTH:
            end = LENGTH + int.from_bytes(self._inbox[:LENGTH], "big")
            if len(self._inbox) < end:
                break
            one, self._inbox = self._inbox[LENGTH:end], self._inbox[end:]
            with _going_on():
                self._follow(protocol.decode_order(one))
        return bool(data)

    def read_early(self) -> None:
        """Execute the orders that have arrived already, without waiting."""
        while select.select([self._sock], [], [], 0)[0] and self._read_orders():
            pass

    def _follow(self, order: Order) -> None:
        try:
            self._do(order)
        except Exception as err:  # the kernel must know about any error
            self._refuse(order, f"{type(err).__name__}: {err}")
            raise

    def _refuse(self, order: Order, why: str) -> None:
        """Inform the kernel that an order could not be executed."""
        match order:
            case StartRank():
                self.tell(Refused(_name_of(order.spec), why))
            case StartLauncher():
                self.tell(Refused(order.name, why))
            case StartController():
                self.tell(Refused(CONTROLLER, why))
            case Preload():
                self.tell(Preloaded(order.id, why))

    def _do(self, order: Order) -> None:
        match order:
            case StartController():
                self._children.start(CONTROLLER, lambda: child_bodies.controller(order))
            case Signal():
                self._children.signal(order.pid, order.signum)
            case End():
                self._children.end(order.pid, order.grace)
            case _ if not self._ready:
                self._waiting.append(order)
            case Preload():
                self._preloads.begin(order)
            case StopPreload():
                self._preloads.stop(order.id)
            case StartLauncher():
                self._start_launcher(order)
            case StartRank():
                self._start_rank(order.spec)

    def tell(self, word: Word) -> None:
        """Send a message to the kernel, if it is still alive."""
        with contextlib.suppress(OSError):
            self._sock.sendall(protocol.pack(word))

    # -- starting ------------------------------------------------------------------------------

    def _start_rank(self, spec: RankSpec) -> None:
        name = _name_of(spec)
        self._plain = self._plain or why_not_fork(canary=False)
        if spec.backend == "horovod" and not self._plain:
            self._have((HOROVOD,))
        if self._plain:
            self._children.start_fresh(name, spec)
        else:
            self._children.start(name, lambda: child_bodies.rank(spec))

    def _start_launcher(self, order: StartLauncher) -> None:
        self._plain = self._plain or why_not_fork(canary=False)
        if not order.cold and not self._plain:
            self._have(launcher.launcher(order.module).WARM)
        cold = order.cold or bool(self._plain)
        self._children.start(order.name, lambda: child_bodies.launcher(order, cold=cold))

    def _have(self, modules: Iterable[str]) -> None:
        """Import modules here instead of in the child, so that later children have them, too."""
        if all(name in sys.modules for name in modules):
            return
        there = "tensorflow" in sys.modules
        with self.leaving_with_kernel():
            for name in modules:
                with contextlib.suppress(Exception):  # the child reports the error
                    importlib.import_module(name)
        if "tensorflow" in sys.modules and not there:  # takes seconds and hundreds of megabytes
            self._plain = self._settle() or threads_left()


def _name_of(spec: RankSpec) -> str:
    return f"rank {spec.rank}.{spec.incarnation}"


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """Log an error and go on: the end of this process would end all ranks."""
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):  # the disk may be full
            traceback.print_exc()


def main() -> None:
    """Run the warm process."""
    # `select` needs a low file descriptor, and a kernel with many open files passes a high one.
    sock = socket.socket(fileno=os.dup(int(sys.argv[1])))
    os.close(int(sys.argv[1]))
    supervisor = Supervisor(sock, kernel=int(sys.argv[2]), folders=sys.argv[3:])
    adopt_orphans()
    be_killed_before_parent()
    # Ctrl-C in the kernel's terminal is for the kernel, which then sends us orders.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Once here: this writes a test file, which a fork killed at that moment would leave behind.
    tempfile.gettempdir()
    gc.disable()  # imports make little garbage, and collections take a sixth of their time
    # The controller is forked before torch is imported: it shares the imports of engines, and
    # starts on another core meanwhile.
    with supervisor.leaving_with_kernel():
        importlib.import_module("nbdist.rank.engine")
        for name in RANKS_IMPORT:
            with contextlib.suppress(ImportError):  # another release of IPython or tornado
                importlib.import_module(name)
    supervisor.read_early()
    supervisor.warm_up(["torch.distributed", "nbdist.backends.ddp.rank_group", *DDP_IMPORTS])
    supervisor.serve()


if __name__ == "__main__":
    main()
