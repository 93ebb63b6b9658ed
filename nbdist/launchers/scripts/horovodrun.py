"""The launcher ``horovodrun``, by its command line or in a process forked from the warm process.

Both run Horovod's own code, with two changes. Its servers listen on loopback instead of on every
address. And the ranks of the forked launcher are its forks, made before Horovod starts threads;
they wait for their environment.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import importlib
import importlib.util
import itertools
import math
import mmap
import multiprocessing
import os
import re
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.backends.horovod import listening
from nbdist.errors import LaunchError
from nbdist.launchers.scripts import guard, ssh
from nbdist.launchers.scripts.hosts import far, hosts_named, is_here, taken
from nbdist.launchers.scripts.launcher import Failed, Needs
from nbdist.machine.operating_system import die_with_parent
from nbdist.machine.sockets import LOOPBACK, interface_towards, loopback_interface
from nbdist.rank.launched_place import THEIRS
from nbdist.rank.rank_spec import CLUSTER_NAME
from nbdist.rank.script_program import decode_program
from nbdist.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from nbdist.launchers.scripts.launcher import Launch

    Start = Callable[[str, Any, list[threading.Event]], tuple[int, float]]

FOLDER = "horovod"
RANK = "nbdist.rank.script_rank"
GOES_ON = True
GIVEN_UP = (
    "Horovod gives up a host when a rank on it ends badly, with all other ranks there, and ends "
    "the job when no host with ranks is left. A host discovery script can name this machine "
    "twice, as localhost:1 and 127.0.0.1:1: Horovod takes them for two hosts."
)
"""Explains why an elastic job ended after the loss of a rank."""
WARM = (RANK, "horovod.runner.launch", "nbdist.backends.horovod.preload_framework")
MPI = {"--mpi", "--jsrun"}
"""Flags with which another program starts the ranks."""
GLOO = b"GlooController"
"""A name in Horovod's library if this was built with Gloo."""
MEET = "HOROVOD_GLOO_TIMEOUT_SECONDS"
"""Environment variable: seconds that ranks wait for each other in `hvd.init`; default 30."""
END_SECONDS = 5.0
"""From SIGTERM to SIGKILL, as in Horovod."""
SIGNALS = 128
"""A shell's exit code for a signal is the signal's number plus this."""
EXITED = re.compile(r"^Process (\d+) exit with status code (\d+)\.", re.MULTILINE)
ENDING = "Terminating remaining workers after failure of Process"
GIVES_UP = "-> stop running"
"""Horovod's messages, the second in an elastic job; later failures are ranks ended by Horovod."""


def check(torch: str) -> None:
    """Raise `LaunchError` if Horovod is not installed; `torch` is not needed."""
    del torch
    demand("--launcher horovodrun")


def demand(flag: str) -> None:
    """Raise `LaunchError` if Horovod, which this flag needs, is not installed."""
    if importlib.util.find_spec("horovod") is None:
        raise LaunchError(
            f"{flag} needs Horovod, which this notebook's Python does not have. To "
            f"build it, some minutes: {sys.executable} -m nbdist.install horovod"
        )


def environ(token: str) -> dict[str, str | None]:
    """Return variables that mark the job's processes, and remove those of an outer job."""
    # Horovod passes on all variables of its environment, and adds those of a rank's place.
    return {CLUSTER_NAME: token, **dict.fromkeys(THEIRS["horovodrun"][0])}


def arguments(wanted: Launch, folder: Path, token: str) -> list[str]:
    """Return horovodrun's flags for a job on this machine."""
    del folder, token
    flags = ["-np", str(wanted.np), "--disable-cache"]  # the cache is in the home folder
    if not MPI & set(wanted.passed_on):
        flags.append("--gloo")
    if wanted.hosts:
        flags += ["-H", ",".join(f"{host}:{slots}" for host, slots in wanted.hosts.items())]
    if wanted.elastic is not None:
        flags += ["--min-np", str(wanted.elastic.least)]
        flags += ["--max-np", str(wanted.elastic.most)] if wanted.elastic.most else []
        flags += (
            ["--host-discovery-script", wanted.elastic.discovery]
            if wanted.elastic.discovery
            else []
        )
    if wanted.reached is not None:
        flags += ["--network-interfaces", interface_towards(wanted.reached.address)]
    elif wanted.elastic is not None:
        # Otherwise an elastic job waits for a second host, to find their common interfaces.
        flags += ["--network-interfaces", loopback_interface()]
    return flags + wanted.passed_on


def needs(passed_on: list[str]) -> Needs:
    """Return what a job on several hosts needs of them."""
    # Horovod 0.28.1 forgets the given interface when it makes its first process set.
    why = "Horovod looks this name up to tell the other ranks where to connect"
    return Needs(["horovod"], ssh_options(passed_on), why)


async def check_flags(passed_on: list[str]) -> None:
    """Raise `LaunchError` if MPI is requested, and Horovod was built without MPI."""
    asked = MPI & set(passed_on)
    if not asked:
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from horovod.common.util import mpi_built; print(mpi_built())",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if told.split()[-1:] != [b"True"]:
        raise LaunchError(
            f"{asked.pop()}: this Horovod was built without MPI, which would start its ranks. "
            "Leave the flag out, or rebuild it: "
            f"{sys.executable} -m nbdist.install horovod --mpi"
        )


def ssh_options(words: list[str]) -> list[str]:
    """Return horovodrun's flags for ssh in `words`, as flags of ssh."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-p", "--ssh-port")
    parser.add_argument("-i", "--ssh-identity-file")
    with contextlib.suppress(argparse.ArgumentError, SystemExit):
        known, _ = parser.parse_known_args(words)
        port = ["-p", known.ssh_port] if known.ssh_port else []
        return port + (["-i", known.ssh_identity_file] if known.ssh_identity_file else [])
    return []


def command(flags: list[str], program: str) -> list[str]:
    """Return the command line of the launcher."""
    return [sys.executable, "-m", __name__, *flags, sys.executable, "-m", RANK, program]


def launch(flags: list[str], program: str) -> None:
    """Run the launcher in this process, with forks of it as the ranks on this machine."""
    words = [*flags, RANK]
    parsed = _parse(words)
    if _is_elastic(parsed) or not parsed.use_gloo:
        # The ranks cannot be forked now: they start later, or another program starts them.
        os.execv(sys.executable, command(flags, program))  # noqa: S606  # the launcher's own command
    gloo_run: Any = importlib.import_module("horovod.runner.gloo_run")
    ranks = [ForkedRank(program) for _ in range(_ranks_here(parsed))]
    argv = [sys.executable, "-m", RANK, program]
    gloo_run._exec_command_fn = lambda _: _starter(ranks, argv, ssh_options(words))  # noqa: SLF001
    _run(words)


def _is_elastic(parsed: Any) -> bool:
    return parsed.host_discovery_script is not None or parsed.min_num_proc is not None


def _ranks_here(parsed: Any) -> int:
    counts = taken(hosts_named(parsed.hosts, None), parsed.num_proc) if parsed.hosts else {}
    away = sum(counts[host] for host in far(counts))
    return int(parsed.num_proc) - away


def failures(log: str) -> list[Failed]:
    """Return the ranks that ended before Horovod ended the others."""
    told = log.partition(ENDING)[0].partition(GIVES_UP)[0]
    return [Failed(int(rank), _signed(int(code)), 0) for rank, code in EXITED.findall(told)]


def _signed(code: int) -> int:
    return SIGNALS - code if code > SIGNALS else code


# -- in the launcher ---------------------------------------------------------------------------


def _parse(words: list[str]) -> Any:
    """Parse horovodrun's command line; unknown arguments end this process."""
    launcher: Any = importlib.import_module("horovod.runner.launch")
    sys.argv[:] = ["horovodrun", *words]
    parsed = launcher.parse_args()
    if parsed.command[:1] not in ([RANK], [sys.executable]):
        # An unknown argument, which horovodrun takes for the program to run.
        sys.exit(f"horovodrun: error: unrecognized arguments: {parsed.command[0]}")
    return parsed


def _run(words: list[str]) -> None:
    """Do what ``horovodrun WORDS`` does, with servers that only its ranks can reach."""
    parsed = _parse(words)
    horovod: Any = importlib.import_module("horovod.runner.launch")
    if not _is_elastic(parsed):
        # Wait long enough for ranks that are still importing; a death is noticed at once.
        os.environ.setdefault(MEET, str(math.ceil(Settings.read().start_seconds)))
    address = LOOPBACK
    if parsed.hosts and far(hosts_named(parsed.hosts, None)):
        network: Any = importlib.import_module("horovod.runner.util.network")
        address = network.get_driver_ip(parsed.nics)
        # nbdist has checked the hosts already, and more thoroughly.
        horovod._check_all_hosts_ssh_successful = lambda *_, **__: True  # noqa: SLF001
    listening.listen_on(address)
    if _built_with_gloo():
        horovod.gloo_built = lambda verbose=False: True  # noqa: ARG005  # the caller's signature
    horovod.run_commandline()


def _built_with_gloo() -> bool:
    """Whether Horovod was built with Gloo; Horovod's own check imports torch, two seconds."""
    found = importlib.util.find_spec("horovod")
    folders = [] if found is None else found.submodule_search_locations or []
    for library in (path for each in folders for path in Path(each).glob("*/mpi_lib*.so")):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
            if text.find(GLOO) >= 0:
                return True
    return False


def _starter(ranks: list[ForkedRank], argv: list[str], options: list[str]) -> Start:
    """Return the function that Horovod calls in a thread for each rank, to run the rank."""
    failed = threading.Event()

    def start(command: str, slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        environ, _ = _split(command)
        events = [*events, failed]
        if is_here(slot.hostname):
            code = ranks.pop().run(environ, events)
        else:
            code = _run_far(slot.hostname, argv, environ, events, options)
        _tell(slot, code, events)
        if code:
            failed.set()
        return code, time.time()

    return start


def _cold_starter(settings: Any, start_here: Start, options: list[str]) -> Start:
    """Return the same for ranks in new processes, which Horovod starts on this machine."""
    failed = threading.Event()

    def start(command: str, slot: Any, events: list[threading.Event] | None) -> tuple[int, float]:
        events = [*(events or []), *([] if settings.elastic else [failed])]
        if is_here(slot.hostname):
            code, at = start_here(command, slot, events)
        else:
            environ, argv = _split(command)
            code, at = _run_far(slot.hostname, argv, environ, events, options), time.time()
            _tell(slot, code, events)
        if code:
            failed.set()
        return code, at

    return start


def _tell(slot: Any, code: int, events: list[threading.Event]) -> None:
    """Print how a failed rank has ended, as Horovod does."""
    if code:
        sys.stdout.write(f"Process {slot.rank} exit with status code {code}.\n")
        if not any(event.is_set() for event in events):
            sys.stdout.write(f"{ENDING} {slot.rank}.\n")
        sys.stdout.flush()


def _split(command: str) -> tuple[dict[str, str], list[str]]:
    """Split a command ``env NAME=VALUE... PROGRAM...`` into variables and program."""
    words = shlex.split(command)[1:]
    environ = dict(word.split("=", 1) for word in itertools.takewhile(lambda w: "=" in w, words))
    return environ, words[len(environ) :]


def _run_far(
    host: str, argv: list[str], environ: dict[str, str], events: list[threading.Event],
    options: list[str],
) -> int:  # fmt: skip
    """Run a rank on another host; return its exit code. Any of the events ends the rank.

    Horovod's own ssh would leave the rank running, and show its environment to all users there.
    """
    on_event = importlib.import_module("horovod.runner.util.threads").on_event
    program = decode_program(Path(argv[-1]).read_bytes())
    # Not the notebook's folder, whose files may hide modules; ranks change to it themselves.
    place = str(program.folder)
    order = guard.Order(argv, ssh.environ_there(environ), place, program.temp)
    rank, ended = guard.Started(host, order, tuple(options)), threading.Event()
    for event in events:
        on_event(event, rank.close, stop=ended)
    code = rank.process.wait()
    ended.set()
    rank.close()
    return code


class ForkedRank:
    """A fork of the launcher that becomes a rank when it gets its environment.

    It is made on the launcher's only thread; `run` is called on one of Horovod's threads.
    """

    def __init__(self, program: str) -> None:
        context = multiprocessing.get_context("fork")
        theirs, self._environ = context.Pipe(duplex=False)
        self._process = context.Process(target=_be_rank, args=(theirs, program))
        self._process.start()
        theirs.close()
        self._ended = threading.Event()

    def run(self, environ: dict[str, str], events: list[threading.Event]) -> int:
        """Run the rank with this environment; return its exit code as in a shell.

        Any of the events ends the rank.
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
    atexit._clear()  # noqa: SLF001  # drop the functions that the warm process has registered
    os.environ.update(environ.recv())
    environ.close()
    script: Any = sys.modules[RANK]  # imported already
    try:
        script.main(program)
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  # Horovod's function informs the other ranks


def main() -> None:
    """Run horovodrun."""
    gloo_run: Any = importlib.import_module("horovod.runner.gloo_run")
    make, options = gloo_run._exec_command_fn, ssh_options(sys.argv[1:])  # noqa: SLF001
    gloo_run._exec_command_fn = lambda settings: _cold_starter(  # noqa: SLF001
        settings, make(settings), options
    )
    _run(sys.argv[1:])


if __name__ == "__main__":
    main()
