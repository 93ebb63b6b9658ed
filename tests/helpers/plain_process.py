"""A process that runs scripts one after the other, without nbdist; see `run_scripts.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.helpers.waiting import allowed


class Ran(NamedTuple):
    """How a script ended."""

    code: int
    stdout: str
    stderr: str


class PlainProcess:
    """Runs scripts, each in a fork.

    Parameters
    ----------
    folder
        The folder in which they run.
    """

    def __init__(self, folder: Path) -> None:
        runner = Path(__file__).with_name("run_scripts.py")
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "NBDIST_HOME")}
        self._process = subprocess.Popen(
            [sys.executable, str(runner)], cwd=folder, env=environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, path: Path) -> Ran:
        """Run a script to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(path, file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        out, err = (Path(f"{path}{ending}").read_text() for ending in (".out", ".err"))
        return Ran(code, out, err)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=allowed(30))
