"""Finds how this build of torch recovers after a fault, from the cache or by a probe in a fork.

The warm process forks the probe, and waits for the result that ranks need to start (whether groups
can be renewed in place). The other results (DDP and FSDP2 models, whose imports take seconds) come
later. The results are cached for the user. The warm process's only thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nbdist.backends.groups import recovery
from nbdist.backends.groups.recovery import Recovery
from nbdist.machine.amounts import in_time
from nbdist.machine.operating_system import die_with_parent, kill_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.launchers.host.child_processes import Children

PROBE = "nbdist.backends.ddp.torch_probe"
GROUPS_SECONDS, SECONDS = 60.0, 600.0
"""Time limits of the probe, for groups and for everything. The second is long because the kernel
does not wait for it, and busy ranks leave the probe little CPU time."""
ANSWER_BYTES = 1 << 16


class Probing:
    """Runs the probe once, and reports its result.

    Parameters
    ----------
    children
        Forks processes.
    tell
        Called with the complete result.
    folder
        The folder for temporary files of the probe.
    """

    def __init__(self, children: Children, tell: Callable[[Recovery], None], folder: str) -> None:
        self._children, self._tell, self._folder = children, tell, folder
        self.found: Recovery | None = None
        """The result so far; always None without torch."""
        self._answer, self._pid, self._inbox = -1, 0, b""
        self._deadline = float("inf")
        children.in_child.append(self._let_go)

    def begin(self, *, fork: bool) -> None:
        """Read the cache, or start the probe and wait for its result on groups."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        self.found = recovery.known(torch)
        if self.found is not None:
            self._tell(self.found)
            return
        self._deadline = time.monotonic() + GROUPS_SECONDS
        try:
            self._start(fork=fork)
        except (OSError, subprocess.SubprocessError) as err:
            self._end(f"it could not be started: {err}")
        while self.watched() and self.found is None:
            left = max(0.0, self._deadline - time.monotonic())
            select.select(self.watched(), [], [], left)
            self.look()
        if self.watched():
            self._deadline = time.monotonic() + SECONDS

    def watched(self) -> list[int]:
        """Return the file descriptor of the running probe."""
        return [] if self._answer < 0 else [self._answer]

    def until(self) -> float:
        """Return when the probe's time limit ends (monotonic time)."""
        return self._deadline

    def look(self) -> None:
        """Read the probe's results: one line after groups, one line at the end."""
        if self._answer < 0:
            return
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._answer, ANSWER_BYTES)
            self._inbox += said
            if not said:
                self._end("it has crashed")
                return
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            self.found = msgspec.json.decode(line, type=Recovery)
        if self.found is not None and self.found.whole:
            if self.found.sure:
                recovery.keep(sys.modules["torch"], self.found)
            self._end("")
        elif time.monotonic() > self._deadline:
            limit = GROUPS_SECONDS if self.found is None else SECONDS
            self._end(f"it did not end within {in_time(limit)}")

    def _start(self, *, fork: bool) -> None:
        self._answer, theirs = os.pipe()
        os.set_blocking(self._answer, False)
        try:
            if fork:
                self._pid = self._children.fork(partial(_in_fork, theirs, self._folder))
            else:
                self._pid = _start_fresh(theirs, self._folder)
        finally:
            os.close(theirs)

    def _end(self, why: str) -> None:
        """End the probe, which `Children` reaps; tests that it did not finish count as failed."""
        self._let_go()
        self._deadline = float("inf")
        if self._pid:
            kill_session(self._pid)
        found = self.found or Recovery(
            groups=f"the probe: {why}", torch=str(sys.modules["torch"].__version__)
        )
        if not found.whole:
            why = f"the probe: {why}"
            found = msgspec.structs.replace(found, models=why, fsdp=why, whole=True)
        self.found = found
        self._tell(found)

    def _let_go(self) -> None:
        if self._answer >= 0:
            os.close(self._answer)
            self._answer = -1


def _in_fork(answer: int, folder: str) -> None:
    from nbdist.backends.ddp import torch_probe  # needs torch

    tempfile.tempdir = folder
    torch_probe.main(answer)


def _start_fresh(answer: int, folder: str) -> int:
    """Start the probe as a new process, where forking is not safe; return its pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", PROBE, str(answer)],
        pass_fds=[answer],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": folder},
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # we have one thread
    )
    process.returncode = 0  # `Children` reaps it by pid
    return process.pid
