"""horovodrun: Horovod's launcher, started by its command line or in a process forked for it.

Both ways it is Horovod's own code that runs. Changed is where ranks find each other: its servers
listen on loopback, and not on every address. And the warm launcher's ranks are forks of it, which
are there, waiting for their environment, before Horovod starts its threads.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import multiprocessing
import os
import re
import shlex
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from nbdist.backends import horovod_sockets
from nbdist.backends.sockets import LOOPBACK, loopback_interface
from nbdist.errors import LaunchError
from nbdist.launchers.scripted import Failed
from nbdist.rank.place import THEIRS
from nbdist.rank.spec import CLUSTER_NAME
from nbdist.system import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from nbdist.launchers.scripted import Launch

FOLDER = "horovod"
RANK = "nbdist.rank.script"
WARM = (RANK, "horovod.runner.launch", "horovod.torch")
MPI = {"--mpi", "--jsrun"}
"""Flags that make another program start the ranks."""
END_SECONDS = 5.0
"""From SIGTERM to SIGKILL, as Horovod has it."""
SIGNALS = 128
"""A shell's exit code for a signal is this much more."""
EXITED = re.compile(r"^Process (\d+) exit with status code (\d+)\.", re.MULTILINE)
ENDING = "Terminating remaining workers after failure of Process"
"""Horovod's words; those that end later have been ended by it."""


def check(torch: str) -> None:
    """Raise `LaunchError` if there is no Horovod; it needs TensorFlow or PyTorch only."""
    del torch
    demand("--launcher horovodrun")


def demand(flag: str) -> None:
    """Raise `LaunchError` if there is no Horovod, for which this flag asks."""
    if importlib.util.find_spec("horovod") is None:
        raise LaunchError(
            f"{flag} needs Horovod, which this notebook's Python does not have. To "
            f"build it, some minutes: {sys.executable} -m nbdist.install horovod"
        )


def environ(token: str) -> dict[str, str | None]:
    """Return what marks every process of the job; a job around the notebook's kernel is left."""
    # Horovod hands on what it finds, after what it says itself of a rank's place.
    return {CLUSTER_NAME: token, **dict.fromkeys(THEIRS["horovodrun"][0])}


def arguments(wanted: Launch, folder: Path, token: str) -> list[str]:
    """Return horovodrun's flags for a job on this machine."""
    del folder, token
    flags = ["-np", str(wanted.np), "--disable-cache"]  # which would be in the home folder
    if not MPI & set(wanted.passed_on):
        flags.append("--gloo")
    if wanted.hosts:
        flags += ["-H", wanted.hosts]
    if "--min-np" in wanted.passed_on:
        # Otherwise an elastic job waits for a second host, to find the interfaces they share.
        flags += ["--network-interfaces", loopback_interface()]
    return flags + wanted.passed_on


def command(flags: list[str], program: str) -> list[str]:
    """Return the plain command line."""
    return [sys.executable, "-m", __name__, *flags, sys.executable, "-m", RANK, program]


def launch(flags: list[str], program: str) -> None:
    """Do the same in this process, whose ranks then are forks of it."""
    words = [*flags, RANK]
    parsed = _parse(words)
    elastic = parsed.host_discovery_script is not None or parsed.min_num_proc is not None
    if elastic or not parsed.use_gloo:
        # Ranks are started when their time has come, or by another program.
        os.execv(sys.executable, command(flags, program))  # noqa: S606  # as a launcher is started
    gloo_run: Any = importlib.import_module("horovod.runner.gloo_run")
    ranks = [ForkedRank(program) for _ in range(parsed.num_proc)]
    gloo_run._exec_command_fn = lambda _: _starter(ranks)  # noqa: SLF001  # Horovod's last release
    _run(words)


def failures(log: str) -> list[Failed]:
    """Return the ranks that ended before Horovod ended the others."""
    told = log.partition(ENDING)[0]
    return [Failed(int(rank), _signed(int(code)), 0) for rank, code in EXITED.findall(told)]


def _signed(code: int) -> int:
    return SIGNALS - code if code > SIGNALS else code


# -- in the launcher ---------------------------------------------------------------------------


def _parse(words: list[str]) -> Any:
    """Return horovodrun's command line parsed; what it does not know ends us."""
    launcher: Any = importlib.import_module("horovod.runner.launch")
    sys.argv[:] = ["horovodrun", *words]
    parsed = launcher.parse_args()
    if parsed.command[:1] not in ([RANK], [sys.executable]):
        # It would take this for the program to run.
        sys.exit(f"horovodrun: error: unrecognized arguments: {parsed.command[0]}")
    return parsed


def _run(words: list[str]) -> None:
    """Do what ``horovodrun WORDS`` does, with its servers on loopback."""
    _parse(words)
    horovod_sockets.listen_on(LOOPBACK)
    importlib.import_module("horovod.runner.launch").run_commandline()


def _starter(ranks: list[ForkedRank]) -> Callable[[str, Any, list[threading.Event]], Any]:
    """Return what Horovod calls, in a thread for each rank, to start it and wait for its end."""
    failed = threading.Event()

    def start(command: str, slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        code = ranks[slot.rank].run(_environ_in(command), [*events, failed])
        if code:
            sys.stdout.write(f"Process {slot.rank} exit with status code {code}.\n")
            if not any(event.is_set() for event in [*events, failed]):
                sys.stdout.write(f"{ENDING} {slot.rank}.\n")
            sys.stdout.flush()
            failed.set()
        return code, time.time()

    return start


def _environ_in(command: str) -> dict[str, str]:
    """Return the variables in a line ``env NAME=VALUE... PROGRAM``."""
    words = shlex.split(command)[1:]
    return dict(word.split("=", 1) for word in words[: words.index(RANK)])


class ForkedRank:
    """A fork of the launcher that becomes a rank when it is told which.

    Made on the launcher's only thread; `run` belongs to one of Horovod's.
    """

    def __init__(self, program: str) -> None:
        context = multiprocessing.get_context("fork")
        theirs, self._environ = context.Pipe(duplex=False)
        self._process = context.Process(target=_be_rank, args=(theirs, program))
        self._process.start()
        theirs.close()
        self._ended = threading.Event()

    def run(self, environ: dict[str, str], events: list[threading.Event]) -> int:
        """Be the rank that this environment makes of it; return its exit code as a shell would.

        Any of the events ends it.
        """
        on_event = importlib.import_module("horovod.runner.util.threads").on_event
        self._environ.send(environ)
        for event in events:
            on_event(event, self._end, stop=self._ended)
        self._process.join()
        self._ended.set()
        code = self._process.exitcode or 0
        return SIGNALS - code if code < 0 else code

    def _end(self) -> None:
        self._process.terminate()
        if not self._ended.wait(END_SECONDS):
            self._process.kill()


def _be_rank(environ: Connection, program: str) -> None:
    die_with_parent()
    atexit._clear()  # noqa: SLF001  # what the warm process has registered is not the rank's
    os.environ.update(environ.recv())
    environ.close()
    script: Any = sys.modules[RANK]  # warm
    try:
        script.main(program)
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  # Horovod's own tells the other ranks


if __name__ == "__main__":
    _run(sys.argv[1:])
