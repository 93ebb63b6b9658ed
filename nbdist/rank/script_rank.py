"""The main program of a script's rank: a launcher starts it, and it runs the script.

It runs as ``python -m nbdist.rank.script_rank FILE``, or in a fork of the warm process. For the
launcher it behaves like the script itself (exit code, signals). In addition its output goes to its
log, and it reports to the hub.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing import process
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from nbdist.backends.groups import recovery
from nbdist.backends.horovod import calls, listening
from nbdist.errors import NbdistError
from nbdist.machine import gpus
from nbdist.machine.operating_system import die_with_parent, no_collection
from nbdist.machine.random_numbers import reseed
from nbdist.machine.sockets import LOOPBACK, interface_towards, loopback_interface
from nbdist.rank import launched_place
from nbdist.rank.looking import vitals
from nbdist.rank.metrics import logger
from nbdist.rank.metrics.resource_file import Resources
from nbdist.rank.reporter import Reporter
from nbdist.rank.running.rank_output import Log
from nbdist.rank.running.script_display import LAST, Showing
from nbdist.rank.script_program import Program, decode_program
from nbdist.rank.values.user_errors import make_quick_to_show, text_of
from nbdist.wire.elastic_rounds import LOST, LOST_TEXT
from nbdist.wire.messages import Done, Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.wire.group_reports import Waiting

STOP_SECONDS = 10.0
"""How long an interrupted rank waits for the launcher to end it, before it ends by itself."""
RETURN_SECONDS = 600.0
"""Time limit for the hub to fetch the returned values."""


def main(path: str) -> None:
    """Run the script of a job as one of its ranks, and exit with the script's exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = decode_program(Path(path).read_bytes())
    rank = launched_place.take(program.launcher)
    log = Log()
    log.take(str(program.folder / f"rank{rank}.log"))
    if program.launcher == "python":
        log.write_lines()
    vitals.answer_stack_signal(str(program.folder / f"rank{rank}.stacks"))
    try:
        waiting = _prepare(program)
        folder, starts = str(program.folder), launched_place.starts()
        reporter = Reporter(program, rank, starts, waiting)
        reporter.resources = Resources(folder, program.job, rank, program.began, starts)
        reporter.start()
        logger.begin(folder, program.job, rank, starts)
        try:
            fault = _take_part(program, rank, log, reporter)
        finally:
            reporter.close()
    except NbdistError as error:  # the request is impossible on this host
        print(f"nbdist: {error}", file=sys.stderr)
        sys.exit(1)
    except BaseException as error:
        if _by_launcher(error):  # before the script began: an exit code would count as a failure
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        traceback.print_exc()  # our own error, which the launcher would not print
        raise
    if process.parent_process() is not None:
        # multiprocessing ends its forks without exit handlers, which some libraries (wandb) need.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TorchElastic's handler would raise there
        atexit._run_exitfuncs()
    sys.exit(0 if fault is None else LOST if LOST_TEXT.search(fault.text) else 1)


def run(path: str) -> NoReturn:
    """Do the same as `main`, and end the process."""
    code = 0
    try:
        main(path)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    _leave(code)


def _take_part(program: Program, rank: int, log: Log, reporter: Reporter) -> Fault | None:
    """Run the script, report how it ended, offer the returned values."""
    process = os.getpid()
    space, error = _run(program, rank == program.shown, log, reporter)
    if os.getpid() != process:
        _end_fork(error)
    fault = None if error is None else _fault(program, error, reporter)
    offered = error is None and rank in program.returning and bool(program.returns)
    if offered:
        taken = _offer(space, program, reporter)
    reporter.end_job()
    reporter.send(Done(program.job, log.size(), fault))
    if offered:
        with suppress(KeyboardInterrupt):
            taken(RETURN_SECONDS)
    if reporter.interrupted.is_set():
        # Wait for the launcher's SIGTERM: an own exit would count as a failure and cause a restart.
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TorchElastic's handler would raise here
        reporter.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        time.sleep(STOP_SECONDS)
    return fault


def _end_fork(error: BaseException | None) -> NoReturn:
    """End a fork of the script that has reached the script's end.

    It must not report to the hub, nor return into the launcher's code, as only the rank may.
    """
    if isinstance(error, Exception):
        traceback.print_exception(error)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0 if error is None else 1)


def _prepare(program: Program) -> Callable[[], Waiting | None]:
    """Prepare this process for the script; return a function that finds waits in collectives."""
    os.chdir(program.cwd)
    process.ORIGINAL_DIR = program.cwd  # type: ignore[attr-defined]  # spawned workers: ''
    sys.path[:] = [str(program.folder), *program.sys_path]
    sys.argv[:] = [program.path, *program.arguments]
    tempfile.tempdir = None  # the launcher that forked us has set another one
    if os.path.isdir(program.temp):  # noqa: PTH112  # another host may not have it
        process.current_process()._config["tempdir"] = program.temp  # type: ignore[attr-defined]
    reseed()
    gpus.take()
    if program.loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback_interface()
    else:
        _choose_interface(program)
    with no_collection():
        look = _settle_torch(program)
    if program.launcher == "python":
        from nbdist.rank.values.pickles import serve_workers

        serve_workers()
    if program.launcher != "horovodrun":
        return look
    if program.loopback:
        listening.listen_on(LOOPBACK)
    return calls.Watch().look


def _choose_interface(program: Program) -> None:
    """Make gloo use the network to the hub; by default it looks up this host's own name.

    The interface may have another name on each host, which Horovod does not expect.
    """
    name = interface_towards(program.url.rpartition(":")[0].removeprefix("tcp://"))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    if "HOROVOD_GLOO_IFACE" in os.environ:
        os.environ["HOROVOD_GLOO_IFACE"] = os.environ["GLOO_SOCKET_IFNAME"]
        os.environ["NCCL_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"]


def _settle_torch(program: Program) -> Callable[[], Waiting | None]:
    """Prepare torch, if installed; return a function that finds waits in its collectives."""
    try:
        import torch

        from nbdist.backends.ddp.current_collective import Watch
        from nbdist.backends.torch_private import recorder
    except ImportError:
        return lambda: None
    recorder.hold_few()
    threads = os.environ.get("OMP_NUM_THREADS")
    # In a fork torch was imported before this was set. The value may be a list with a number for
    # each level of nested regions; like OpenMP, we ignore other values.
    outermost = (threads or "").partition(",")[0].strip()
    if outermost.isdecimal() and int(outermost):
        torch.set_num_threads(int(outermost))
    found = recovery.known(torch)
    if found is not None and found.talks:
        from nbdist.backends.torch_private import hooks

        hooks.quiet_gloo()
    with suppress(Exception):  # another torch may have other private parts; scripts run anyway
        from nbdist.backends.torch_private import rendezvous

        rendezvous.keep_stores_private(loopback=program.loopback)
    with suppress(Exception):  # as above: waits for other ranks stay unknown
        from nbdist.backends.torch_private import timed_waits

        timed_waits.time_waits()
    return Watch().look


def _run(
    program: Program, shown: bool, log: Log, reporter: Reporter
) -> tuple[dict[str, Any], BaseException | None]:
    """Run the script as Python does; return its names, and the error that ended it or None."""
    module = ModuleType("__main__")
    module.__file__ = program.path
    sys.modules["__main__"] = module
    space = vars(module)
    try:
        text = Path(program.path).read_text(encoding="utf-8")
        showing = Showing(program.job, log, reporter.send_now if shown else None)
        if program.shows_last:
            space[LAST] = showing.value
        with showing.during(text):
            exec(program.compiled(), space)  # noqa: S102  # the user's script
    except SystemExit as end:
        return space, None if end.code in (None, 0) else end
    except BaseException as error:  # any error ends the script, and is reported
        _end_undisturbed()
        return space, error
    return space, None


def _end_undisturbed() -> None:
    """Block SIGTERM: after a failure elsewhere the launcher ends also ranks that fail themselves.

    The launcher kills ranks that take too long.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _by_launcher(error: BaseException) -> bool:
    """Whether TorchElastic's handler of SIGTERM has raised this error."""
    return type(error).__name__ == "SignalException"


def _fault(program: Program, error: BaseException, reporter: Reporter) -> Fault:
    at = time.time()
    make_quick_to_show(error)
    traceback, text = program.traceback_of(error), text_of(error)
    line = program.cell_line_of(error.__traceback__)
    worker = program.worker_in(text)
    if worker is not None:  # the worker's error is the cause of the one raised here
        text, traceback, line = worker.told, worker.traceback, worker.line or line
    return Fault(
        name=type(error).__name__,
        text=text,
        traceback=traceback,
        line=line,
        at=at,
        # The launcher ends the other ranks by SIGTERM when one has failed.
        aborted=reporter.interrupted.is_set() or _by_launcher(error),
    )


def _offer(space: dict[str, Any], program: Program, reporter: Reporter) -> Callable[[float], bool]:
    """Pack names for the notebook; return a function that waits until they are fetched."""
    from nbdist.rank.looking.rank_names import Names
    from nbdist.wire.shared_memory import Blocks

    shell: Any = SimpleNamespace(user_ns=space, user_ns_hidden={})  # as `Names` uses it
    ours = Names(shell, None if program.loopback else Blocks(program.folder))
    reporter.offered = ours.offer(program.returns)
    return reporter.taken.wait


def _leave(code: int) -> NoReturn:
    """End as a forked worker does: with exit handlers, but without Python's normal shutdown.

    During this shutdown gloo's threads may abort a process that still has its process group.
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run(sys.argv[1])
