"""`Board`: starts TensorBoard on a job's metrics, and ends it.

It runs in a process of its own (`nbdist.metrics.tensorboard_process`), which imports what the
kernel should not.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nbdist.errors import LaunchError, UsageError
from nbdist.launchers.host.warm_process_client import tail_in_words
from nbdist.machine.amounts import in_time
from nbdist.machine.operating_system import private

if TYPE_CHECKING:
    from nbdist.job.job import Job

START_SECONDS = 120.0
END_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""Interval of polling; an interrupt takes effect within this time."""


class Board:
    """A TensorBoard process of one job; its `url` can be opened on this machine only.

    Parameters
    ----------
    job
        The job whose metrics are shown, including later ones.
    port
        The port to listen on; 0 takes a free one.

    Raises
    ------
    UsageError
        If tensorboard is not installed, or the job's folder has been cleared away.
    LaunchError
        If TensorBoard does not start; everything was cleaned up.

    """

    def __init__(self, job: Job, port: int) -> None:
        _check_installed()
        job.check_rank(job.ranks[0])
        # In the job's folder, it goes with the logs in time if all of us are killed at once.
        self._folder = Path(tempfile.mkdtemp(prefix="tensorboard-", dir=job.folder))
        log = self._folder / "tensorboard.log"
        arguments = map(str, (job.folder, job.id, self._folder, port, os.getpid()))
        with open(log, "ab", opener=private) as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nbdist.metrics.tensorboard_process", *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        try:
            self.url = self._hear(log)
        except BaseException:  # an interrupt, too, must leave nothing behind
            self.stop()
            raise

    def _hear(self, log: Path) -> str:
        """Wait until TensorBoard serves, and return its URL."""
        told = self._process.stdout
        assert told is not None
        until = time.monotonic() + START_SECONDS
        while not select.select([told], [], [], LOOK_SECONDS)[0]:
            if time.monotonic() > until:
                raise LaunchError(f"TensorBoard did not start in {in_time(START_SECONDS)}")
        line = told.readline()
        if not line:
            raise LaunchError(f"TensorBoard ended at its start; {tail_in_words(log)}")
        answer = json.loads(line)
        if "error" in answer:
            raise LaunchError(answer["error"])
        return str(answer["url"])

    @property
    def alive(self) -> bool:
        """Whether TensorBoard is running."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop TensorBoard, and wait for its end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _check_installed() -> None:
    spec = None
    with suppress(ValueError):  # a module somebody has put together by hand
        spec = importlib.util.find_spec("tensorboard")
    if spec is None or spec.origin is None:  # a folder of that name is none
        raise UsageError(
            f"tensorboard is not installed in {sys.prefix}: `pip install 'nbdist[tensorboard]'`"
        )
