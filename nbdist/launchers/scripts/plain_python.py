"""The launcher ``python``: runs a cell as one plain process that starts its own workers.

Such a cell uses ``mp.spawn`` or Lightning's ``ddp_spawn``, which torchrun's environment variables
or an existing process group would disturb. A process that watches the program reports how it ended.
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
"""A shell's exit code for a signal is the signal's number plus this."""
ENDED = re.compile(r"^nbdist: the program \(pid (\d+)\) ended with (-?\d+)$", re.MULTILINE)


def check(torch: str) -> None:
    """Do nothing: plain Python needs nothing else."""
    del torch


def needs(passed_on: list[str]) -> Needs:
    """Return no requirements: the program runs on this machine."""
    del passed_on
    return Needs([])


async def check_flags(passed_on: list[str]) -> None:
    """Do nothing: there are no flags."""
    del passed_on


def environ(token: str) -> dict[str, str | None]:
    """Return a variable that marks the job's processes, and remove all variables of launchers."""
    names = (*OURS, CLUSTER_NAME, *(name for each in THEIRS["horovodrun"] for name in each))
    return {**dict.fromkeys(names), JOB_NAME: token}


def arguments(wanted: Launch, folder: Path, token: str) -> list[str]:
    """Return no flags."""
    del wanted, folder, token
    return []


def command(flags: list[str], program: str) -> list[str]:
    """Return the command line of the launcher."""
    del flags
    return [sys.executable, "-m", __name__, program]


def launch(flags: list[str], program: str) -> None:
    """Run the program in a fork of this process."""
    from nbdist.rank import script_rank  # imported already

    del flags
    pid = os.fork()
    if pid == 0:
        script_rank.run(program)
    _see_to(pid)


def failures(log: str) -> list[Failed]:
    """Return the program's failure, if it failed."""
    return [Failed(0, int(code), int(pid)) for pid, code in ENDED.findall(log)]


def _see_to(pid: int) -> None:
    """Wait for the program, print how it ended, and exit with its code; SIGTERM ends both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program gets its own SIGINT
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on the pid may be another process's
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        sys.stdout.write(f"nbdist: the program (pid {pid}) ended with {code}\n")
        sys.stdout.flush()
    sys.exit(code if code >= 0 else SIGNALS - code)


if __name__ == "__main__":
    started = subprocess.Popen([sys.executable, "-m", RANK, *sys.argv[1:]])
    started.returncode = 0  # `_see_to` reaps it
    _see_to(started.pid)
