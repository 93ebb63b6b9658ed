"""A real kernel, used as a front end uses it, and all processes that it has started."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager

from benchmarks.processes import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psutil
    from typing_extensions import Self

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class CellError(Exception):
    """A cell failed."""


class CellHangsError(CellError):
    """A cell did not end in time."""


@dataclass(frozen=True)
class Heard:
    """A message that a page gets."""

    at: float  # time.time() of its arrival
    text: str
    size: int  # bytes on the wire


@dataclass(frozen=True)
class Reply:
    """The result of a cell."""

    seconds: float  # from sending the cell to the kernel being idle again
    ended: float  # time.time() when the kernel was idle
    heard: tuple[Heard, ...]

    @property
    def text(self) -> str:
        """The text of streams, errors and displays, without colours."""
        return _ANSI.sub("", "".join(each.text for each in self.heard))


class Notebook:
    """A kernel with a client; leaves no process and no file behind when closed."""

    def __init__(self, module: str, environ: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nbdist-bench-"))
        self.family = Family()
        self._manager = KernelManager(kernel_name="python3")
        assert self._manager.kernel_spec is not None
        self._manager.kernel_spec.argv = [sys.executable, "-m", module, "-f", "{connection_file}"]
        try:
            self._manager.start_kernel(
                cwd=str(self.folder),
                env=self._environ() | dict(environ or {}),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._client = self._manager.client()
            self._client.start_channels()
            self._client.wait_for_ready(timeout=60)
        except BaseException:  # Ctrl-C, too, must leave no process
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, *cells: str, timeout: float = 120, check: bool = True) -> Reply:
        """Send all cells at once; return when the kernel is idle after the last one."""
        heard: list[Heard] = []
        failed = False
        until = time.monotonic() + timeout
        start = time.perf_counter()
        sent = [self._client.execute(cell) for cell in cells]
        while True:
            message, size = self._receive(until)
            if message is None:
                raise CellHangsError(f"the cell still hangs after {timeout:.0f} s")
            parent, kind = message["parent_header"].get("msg_id"), message["msg_type"]
            if kind == "status":
                if parent == sent[-1] and message["content"]["execution_state"] == "idle":
                    break
            elif parent in sent:
                heard.append(Heard(time.time(), _text(message["content"]), size))
                failed |= kind == "error"
        seconds, ended = time.perf_counter() - start, time.time()
        for _ in cells:
            failed |= self._client.get_shell_msg(timeout=10)["content"]["status"] == "error"
        reply = Reply(seconds, ended, tuple(heard))
        if failed and check:
            raise CellError(reply.text.strip() or f"failed without a word: {cells[-1]}")
        return reply

    def send(self, cell: str) -> None:
        """Send a cell, and do not wait for it."""
        self._client.execute(cell)

    def _receive(self, until: float) -> tuple[dict[str, Any] | None, int]:
        """Return the next message of iopub and its size in bytes; None if none comes in time."""
        channel = self._client.iopub_channel
        if not channel.socket.poll(max(0, 1e3 * (until - time.monotonic()))):
            return None, 0
        frames = channel.socket.recv_multipart()
        _, message = channel.session.feed_identities(frames)
        return channel.session.deserialize(message), sum(map(len, frames))

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    @property
    def pid(self) -> int:
        """Process id of the kernel."""
        provisioner: Any = self._manager.provisioner
        return int(provisioner.pid)

    def processes(self) -> list[psutil.Process]:
        """Return all living processes that this kernel has started, without the kernel itself."""
        return [process for process in self.family.living() if process.pid != self.pid]

    def settle(self, quiet: float = 0.5, timeout: float = 60) -> None:
        """Wait until the kernel's processes use no processor time for a while."""
        until = time.monotonic() + timeout
        time.sleep(1)  # by now all processes have begun
        before, now = -1.0, self._processor_seconds()
        while now - before > 0.02:
            if time.monotonic() > until:
                raise CellHangsError(f"the kernel's processes are not quiet after {timeout:.0f} s")
            time.sleep(quiet)
            before, now = now, self._processor_seconds()

    def close(self) -> None:
        """End the kernel and all its processes."""
        with suppress(AttributeError):  # no client yet
            self._client.stop_channels()
        with suppress(Exception):  # the kernel has died, or has never started
            self._manager.shutdown_kernel(now=True)
        self.family.end()
        self._manager.cleanup_resources()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processor_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return sum(each.user + each.system for each in times)

    def _environ(self) -> dict[str, str]:
        # Apart from the user's settings and profiles, and from files that a peer writes.
        own = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")
        return self.family.environ | {name: str(self.folder / name.lower()) for name in own}


def _text(content: dict[str, Any]) -> str:
    if "traceback" in content:
        return "\n".join(content["traceback"]) + "\n"
    return str(content.get("text") or content.get("data", {}).get("text/plain", ""))
