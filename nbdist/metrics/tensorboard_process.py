"""The process that runs TensorBoard on one job's metrics, and ends with its parent process.

``python -m nbdist.metrics.tensorboard_process FOLDER JOB TARGET PORT PARENT`` prints a line of JSON
when TensorBoard serves (``url``) or cannot serve (``error``). The process ends when its input is
closed or its parent ends, and removes `TARGET`.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tensorboard import program

from nbdist.metrics.tensorboard_events import Events

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 1.0
END_SECONDS = 2.0
"""How long the end waits for the writing thread before it removes the folder."""
FIRST_SECONDS = 3.0
"""How long earlier values are written before the page is shown."""


class _End:
    """Ends this process in an orderly way, and only once."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.asked = threading.Event()
        self.writing = threading.Lock()

    def now(self, code: int = 0) -> NoReturn:
        self.asked.set()
        self.writing.acquire(timeout=END_SECONDS)
        shutil.rmtree(self._target, ignore_errors=True)
        os._exit(code)

    def with_parent(self, parent: int) -> None:
        """Wait until our input is closed or the parent has ended, then end. In its own thread."""
        while os.getppid() == parent:  # a fork of the parent may hold our input open
            ready, _, _ = select.select([0], [], [], LOOK_SECONDS)
            if ready:
                break
        self.now()


def main(folder: Path, job: str, target: Path, port: int, parent: int) -> None:
    """Run TensorBoard until this process is ended."""
    end = _End(target)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end.now).start())
    threading.Thread(target=end.with_parent, args=(parent,), daemon=True).start()
    runs = target / "runs"
    runs.mkdir()
    events = Events(folder, job, runs)
    try:
        url = _serve(runs, job, port)
    except program.TensorBoardServerException as err:
        _tell(error=err.msg)
        end.now(1)
    until = time.monotonic() + FIRST_SECONDS
    _write(events, end, lambda: end.asked.is_set() or time.monotonic() > until)
    _tell(url=url)
    while not end.asked.wait(LOOK_SECONDS):
        _write(events, end, end.asked.is_set)
    threading.Event().wait()  # the other thread ends this process


def _serve(runs: Path, job: str, port: int) -> str:
    board = program.TensorBoard()
    flags = {
        "logdir": runs, "host": "127.0.0.1", "port": port, "window_title": f"Job {job}",
        "reload_interval": 1, "load_fast": "false",
    }  # fmt: skip
    board.configure([__name__, *(f"--{name}={value}" for name, value in flags.items())])
    return str(board.launch())


def _write(events: Events, end: _End, enough: Callable[[], bool]) -> None:
    with end.writing:
        if not end.asked.is_set():
            events.read(enough)


def _tell(**what: str) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201  # for the parent process


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
