"""Runs scripts as `python FILE` does, each in a fork of this process, which has imported torch.

Each line of the input is a path. When a script has ended, its output is in FILE.out and FILE.err,
and one line with its exit status is printed.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback

# Imports that take most of a small script's time. Nothing of nbdist is imported.
import cloudpickle  # noqa: F401
import numpy as np  # noqa: F401
import torch  # noqa: F401


def run(path: str) -> int:
    """Run a script in a fork; return its exit status."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    for descriptor, ending in ((1, ".out"), (2, ".err")):
        file = os.open(path + ending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
    code = 0
    try:
        sys.argv[:] = [path]
        runpy.run_path(path, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{run(line.strip())}\n")
        sys.stdout.flush()
