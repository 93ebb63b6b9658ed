"""A cell as a plain program: one process, which no launcher has told who it is.

It makes its own workers (``mp.spawn``, Lightning's ``ddp_spawn``): torchrun's variables would get
in their way, and so would a group. The process that watches it tells how it ended.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from nbdist.launchers.scripts.launcher import Failed, Needs
from nbdist.rank.launched_place import OURS, THEIRS
from nbdist.rank.rank_spec import CLUSTER_NAME, JOB_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.launchers.scripts.launcher import Launch

RANK = "nbdist.rank.script_rank"
FOLDER = "python"
GOES_ON = False
GIVEN_UP = ""
WARM = (RANK,)
SIGNALS = 128
"""A shell's exit code for a signal is this much more."""
ENDED = re.compile(r"^nbdist: the program \(pid (\d+)\) ended with (-?\d+)$", re.MULTILINE)


def check(torch: str) -> None:
    """Nothing is needed that is not there."""
    del torch


def needs(passed_on: list[str]) -> Needs:
    """Return what a job on several hosts would need of them; it runs on this one."""
    del passed_on
    return Needs([])


async def check_flags(passed_on: list[str]) -> None:
    """There are no flags that could be passed on."""
    del passed_on


def environ(token: str) -> dict[str, str | None]:
    """Return what marks every process of the job, and takes away who a launcher said it is."""
    names = (*OURS, CLUSTER_NAME, *(name for each in THEIRS["horovodrun"] for name in each))
    return {**dict.fromkeys(names), JOB_NAME: token}


def arguments(wanted: Launch, folder: Path, token: str) -> list[str]:
    """Return its flags: none."""
    del wanted, folder, token
    return []


def command(flags: list[str], program: str) -> list[str]:
    """Return the plain command line."""
    del flags
    return [sys.executable, "-m", __name__, program]


def launch(flags: list[str], program: str) -> None:
    """Do the same in this process, whose fork then is the program."""
    from nbdist.rank import script_rank  # warm: it is there already

    del flags
    pid = os.fork()
    if pid == 0:
        script_rank.run(program)
    _see_to(pid)


def failures(log: str) -> list[Failed]:
    """Return how the program failed, if it did."""
    return [Failed(0, int(code), int(pid)) for pid, code in ENDED.findall(log)]


def _see_to(pid: int) -> None:
    """Wait for the program's end, tell of it, and end like it; SIGTERM ends both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program's, which is told by itself
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on its number may be another's
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        sys.stdout.write(f"nbdist: the program (pid {pid}) ended with {code}\n")
        sys.stdout.flush()
    sys.exit(code if code >= 0 else SIGNALS - code)


if __name__ == "__main__":
    started = subprocess.Popen([sys.executable, "-m", RANK, *sys.argv[1:]])
    started.returncode = 0  # it is reaped below
    _see_to(started.pid)
