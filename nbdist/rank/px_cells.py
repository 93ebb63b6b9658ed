"""Serves ipyparallel's own requests (`%px`) on a rank: turns, complete output, signals.

Each stream has a thread that reads it, and signals arrive on ipykernel's control thread; everything
else belongs to the main thread.
"""

from __future__ import annotations

import codecs
import os
import secrets
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ipykernel.iostream import OutStream

from nbdist.rank.running.rank_output import lent

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

CATCH_UP_SECONDS = 5.0


class EngineStream(OutStream):
    """The engine's stdout or stderr, with a file descriptor for output that bypasses Python.

    ipykernel also watches file descriptors, but one cannot wait for it: the last output of C code
    would arrive after its cell, and be lost.
    """

    def __init__(self, session: Any, pub_thread: Any, name: str) -> None:  # ipykernel's
        super().__init__(session, pub_thread, name, watchfd=False)
        self._from, self._to = os.pipe()
        self._mark = b"\0" + secrets.token_bytes(16)
        self._marked = threading.Event()
        threading.Thread(target=self._listen, name=f"nbdist-{name}", daemon=True).start()

    def fileno(self) -> int:
        """Return a file descriptor whose text goes where `write` goes."""
        return self._to

    def catch_up(self) -> None:
        """Wait until the text written to the file descriptor was read and sent."""
        self._marked.clear()
        os.write(self._to, self._mark)
        self._marked.wait(CATCH_UP_SECONDS)
        self.flush()

    def _listen(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = b""
        while True:
            *whole, rest = (rest + os.read(self._from, 1 << 16)).split(self._mark)
            for part in whole:
                self.write(decoder.decode(part))
                self._marked.set()
            cut = max(n for n in range(len(self._mark)) if rest.endswith(self._mark[:n]))
            if text := decoder.decode(rest[: len(rest) - cut]):
                self.write(text)
            rest = rest[len(rest) - cut :]


def admit(kernel: Any, lock: asyncio.Lock) -> None:  # ipyparallel's untyped kernel
    """Make ipyparallel's requests and our cells run in turn, each with its own output."""
    execute, apply = kernel.do_execute, kernel.do_apply
    out, err = sys.stdout, sys.stderr
    assert isinstance(out, EngineStream)  # config.IPEngine.out_stream_factory
    assert isinstance(err, EngineStream)

    @contextmanager
    def as_engine() -> Iterator[None]:
        with lent(out, err):
            kernel.shell.set_parent(kernel.get_parent("shell"))  # of the streams, too
            try:
                yield
            finally:
                out.catch_up()
                err.catch_up()

    async def do_execute(*args: object, **kwargs: object) -> object:
        async with lock:
            with as_engine():
                return await execute(*args, **kwargs)

    def do_apply(*args: object, **kwargs: object) -> object:
        with as_engine():
            return apply(*args, **kwargs)

    async def signal_request(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Send the signal, as ipyparallel's nanny process does otherwise."""
        wanted = parent["content"]["sig"]
        os.kill(os.getpid(), getattr(signal, wanted) if isinstance(wanted, str) else wanted)
        if not wanted:
            # Shows our client that it receives this engine's output, see `nbdist.notebook.clients`.
            content = {"name": "stdout", "text": "here\n"}
            kernel.session.send(kernel.iopub_socket, "stream", content, parent=parent)
        kernel.session.send(stream, "signal_reply", {"status": "ok"}, parent=parent, ident=ident)

    kernel.do_execute, kernel.do_apply = do_execute, do_apply
    kernel.control_handlers["signal_request"] = signal_request
