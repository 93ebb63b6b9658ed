"""Starts, watches and ends the child processes of the warm process.

Each child has a session of its own. The warm process notices a death at once, and kills what the
child left in its session (DataLoader workers). All run in the warm process's only thread, because
PR_SET_PDEATHSIG ties the children to the thread that forked them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nbdist.launchers.host import protocol
from nbdist.launchers.host.protocol import LAUNCHER, Died, Refused, Started
from nbdist.machine.operating_system import (
    be_killed_before_parent,
    die_with_parent,
    kill_descendants,
    kill_session,
    oom_kills,
    private,
)
from nbdist.machine.process_lives import started
from nbdist.machine.random_numbers import reseed
from nbdist.rank.rank_spec import CLUSTER_NAME, JOB_NAME

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    import psutil

    from nbdist.launchers.host.protocol import Word
    from nbdist.rank.rank_spec import RankSpec

END_SECONDS = 1.5
"""From SIGTERM to SIGKILL when the kernel has ended."""


class Children:
    """Starts, watches and ends processes.

    Parameters
    ----------
    sock
        The socket to the kernel, which no child may keep open.
    tell
        Sends a message to the kernel.
    """

    def __init__(self, sock: socket.socket, tell: Callable[[Word], None]) -> None:
        self._sock, self._tell = sock, tell
        self._names: dict[int, str] = {}
        self._oom_before: dict[int, int | None] = {}
        self._kill_at: dict[int, float] = {}
        self.in_child: list[Callable[[], None]] = []
        """Functions that a forked child calls first."""
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    # -- starting ------------------------------------------------------------------------------

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Fork a process, and report its start and its end to the kernel under this name."""
        oom = oom_kills()
        try:
            pid = self.fork(body)
        except OSError as err:
            self._tell(Refused(name, f"fork failed: {err}"))
            return
        self._born(name, pid, oom)

    def fork(self, body: Callable[[], None]) -> int:
        """Fork a process that runs `body` and ends; return its pid."""
        pid = os.fork()
        if pid == 0:
            self._run_child(body)
        return pid

    def _run_child(self, body: Callable[[], None]) -> NoReturn:
        """Run `body` in this fork, and end it."""
        code = 1
        try:
            self._become_child()
            body()
            code = 0
        except SystemExit as end:  # argparse has printed the reason
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException:  # a child must never return into our loop
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _become_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(self.wake)
        self._sock.close()
        os.setsid()
        die_with_parent()
        be_killed_before_parent()
        reseed()
        for act in self.in_child:
            act()

    def start_fresh(self, name: str, spec: RankSpec) -> None:
        """Start a rank as a new Python process, where forking is not safe."""
        oom = oom_kills()
        try:
            pid = _fresh(spec)
        except (OSError, subprocess.SubprocessError) as err:
            self._tell(Refused(name, f"no process could be started: {err}"))
            return
        self._born(name, pid, oom)

    def _born(self, name: str, pid: int, oom: int | None) -> None:
        try:
            created = started(pid)
        except OSError as err:  # no file descriptor left; without its start time a pid is ambiguous
            _undo(pid)
            self._tell(Refused(name, f"its start time cannot be read: {err}"))
            return
        self._names[pid] = name
        self._oom_before[pid] = oom
        self._tell(Started(name, pid, created))

    # -- ending --------------------------------------------------------------------------------

    def signal(self, pid: int, signum: int) -> None:
        """Signal a living child; the pid of a dead one may belong to another process."""
        if pid in self._names:
            os.kill(pid, signum)

    def end(self, pid: int, grace: float) -> None:
        """Ask a process to end, and kill it after `grace` seconds."""
        if pid in self._names:
            os.kill(pid, signal.SIGTERM)
            self._kill_at[pid] = time.monotonic() + grace

    def next_kill(self) -> float:
        """Return when the next process must be killed (monotonic time)."""
        return min(self._kill_at.values(), default=float("inf"))

    def look(self) -> None:
        """Report the processes that have died; kill those whose grace time is over."""
        self._reap()
        now = time.monotonic()
        for pid in [pid for pid, at in self._kill_at.items() if at <= now]:
            del self._kill_at[pid]
            kill_session(pid)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        while True:
            try:
                # Look without reaping: until it is reaped, its pid, and so its session id, stays
                # taken.
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
                before, now = self._oom_before.pop(gone.si_pid), oom_kills()
                oom = before is not None and now is not None and now > before
                signum, code = (gone.si_status, 0) if by_signal else (0, gone.si_status)
                self._tell(Died(name, gone.si_pid, signum, code, oom and signum == signal.SIGKILL))

    def end_all(self) -> None:
        """End all children: SIGTERM, then SIGKILL."""
        for pid in self._names:
            with contextlib.suppress(OSError):  # it may run as another user now
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while self._names and time.monotonic() < deadline:
            select.select([self.wake], [], [], max(0.0, deadline - time.monotonic()))
            self._reap()
        for pid in self._names:
            kill_session(pid)
        # A process that left its session (a daemon) has become our child: we are its subreaper.
        kill_descendants()


def _fresh(spec: RankSpec) -> int:
    """Start a rank as a new Python process; return its pid.

    Raises
    ------
    OSError, subprocess.SubprocessError
        If it cannot be started; then no process is left.
    """
    with open(Path(spec.folder, f"rank{spec.rank}.log"), "ab", opener=private) as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "nbdist.rank.engine"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_become_fresh,  # noqa: PLW1509  # we have one thread
        )
    # We reap the process by its pid; Popen must not.
    process.returncode = 0
    assert process.stdin is not None
    try:
        with process.stdin as pipe:
            pipe.write(protocol.encode(spec))
    except OSError:
        _undo(process.pid)
        raise
    return process.pid


def _become_fresh() -> None:
    die_with_parent()
    be_killed_before_parent()


def _undo(pid: int) -> None:
    """Kill and reap a process that was not reported yet, with all its children."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):  # no file descriptor left
        kill_session(pid)
    os.waitpid(pid, 0)


def _kill_workers(token: str) -> None:
    """Kill a launcher's remaining workers, which may have sessions of their own."""

    def is_marked(process: psutil.Process) -> bool:
        environ = process.environ()
        return token in (environ.get(CLUSTER_NAME), environ.get(JOB_NAME))

    kill_descendants(is_marked)
