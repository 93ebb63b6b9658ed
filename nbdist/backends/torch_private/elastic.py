"""Runs TorchElastic's agent (``torchrun``) in this process, with workers forked from it."""

from __future__ import annotations

import inspect
import logging
import sys
import tempfile
import time
from contextlib import contextmanager
from multiprocessing import connection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing as mp
from torch.distributed import run as torchrun
from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server import api as agent
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.utils import logging as elastic_logging
from torch.distributed.launcher.api import elastic_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


LOOKING_AROUND = (dynamic_rendezvous, events, elastic_logging)
"""Modules that use `inspect`."""
MULTIPROCESSING = "torch.distributed.elastic.multiprocessing.api"
"""The name of the logger of the module that starts the workers."""
LOOK_SECONDS = 0.5
"""How often the agent looks at its workers if none of them returns or ends."""
RETURNED = 5
"""The index of the argument of TorchElastic's worker with the queues of returned values."""


class _Watched:
    """An agent's workers: the agent sleeps until one of them returns a value or ends."""

    def __init__(self) -> None:
        self._unheard: set[Any] = set()
        """For each worker, the handles that become readable when it returns a value and when it
        ends."""

    def watch(self, context: Any, returned: dict[int, Any]) -> None:
        """Watch the workers that have just been started, instead of any earlier ones."""
        readers = {getattr(queue, "_reader", None) for queue in returned.values()} - {None}
        self._unheard = readers | {process.sentinel for process in context.processes}

    def sleep(self, seconds: float) -> None:
        """Replace the agent's `time.sleep`; each handle ends the sleep once."""
        self._unheard -= set(connection.wait(self._unheard, max(seconds, LOOK_SECONDS)))


def launch(arguments: list[str], entry: Callable[[str], None], path: str) -> None:
    """Do what ``torchrun ARGUMENTS`` does, with workers forked from this process.

    Parameters
    ----------
    arguments
        Flags of torchrun.
    entry
        Called with the argument `path` in every worker.
    """
    with _no_gpu_opened():
        config, _, _ = torchrun.config_from_args(torchrun.parse_args([*arguments, "script"]))
    config.start_method = "fork"
    assert config.logs_specs is not None
    logging.getLogger(MULTIPROCESSING).addFilter(_without_trace)
    tempfile.tempdir = config.logs_specs.root_log_dir  # else it leaves files behind
    name_callers_quickly()
    _meet_at_once()
    with _exit_codes_reported():
        elastic_launch(config, entry)(path)


@contextmanager
def _no_gpu_opened() -> Iterator[None]:
    """Let TorchElastic find no GPU: a GPU opened by this process is unusable in its forks.

    TorchElastic looks for a GPU only to choose a default NUMA binding, of which torch has none.
    """
    look = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = look


def _stack() -> list[inspect.FrameInfo]:
    """Return what `inspect.stack` returns, but without source lines, which is much faster."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append(
            inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        )
        frame = frame.f_back
    return found


def name_callers_quickly() -> None:
    """Speed up how TorchElastic finds its callers' names, which it writes into its records.

    Its search for their source lines took half of a launch, more with every imported module.
    """
    for module in LOOKING_AROUND:
        vars(module)["inspect"] = SimpleNamespace(stack=_stack, getmodule=inspect.getmodule)


def _meet_at_once() -> None:
    """Skip the random pause, at most 0.3 s, that spreads the arrival of many agents."""
    delay = vars(dynamic_rendezvous).get("_delay")

    def not_by_chance(seconds: Any) -> None:
        if delay is not None and not isinstance(seconds, tuple):  # a tuple is a random pause
            delay(seconds)

    vars(dynamic_rendezvous)["_delay"] = not_by_chance


def _without_trace(record: logging.LogRecord) -> bool:
    """Remove the traceback from the log record of a failed worker.

    The traceback shows only TorchElastic's code. To format it, torch imports `torch._dynamo`, which
    delays the end of the other ranks by 2 s.
    """
    record.exc_info = None
    return True


def _answer_for_silent(context: Any, returned: dict[int, Any]) -> None:
    """Answer with None for workers that end by ``os._exit(0)``.

    For torchrun's command line such a worker has succeeded. But TorchElastic waits for the returned
    value of a worker that is a function, here forever.
    """
    join = context.join
    answered: set[int] = set()

    def joined(*args: Any, **options: Any) -> Any:
        try:
            return join(*args, **options)
        finally:  # it raises if another worker has failed, often because this one is gone
            for rank in sorted(returned.keys() - answered):
                answer(rank, context.processes[rank])

    def answer(rank: int, process: Any) -> None:
        if not returned[rank].empty():  # TorchElastic reads the value next
            answered.add(rank)
        elif process.exitcode == 0:
            answered.add(rank)
            sys.stderr.write(_ending_of("silent", rank, process))
            returned[rank].put(None)

    context.join = joined


def _ending_of(how: str, rank: int, process: Any) -> str:
    return f"{how} (exitcode: {process.exitcode}) local_rank: {rank} (pid: {process.pid})\n"


@contextmanager
def _exit_codes_reported() -> Iterator[None]:
    """Print how every failed worker ended, in TorchElastic's own format.

    TorchElastic names only one of the forked workers, often one that failed because of another.
    """
    start = vars(mp)["start_processes"]
    last: list[Any] = []
    watched = _Watched()
    vars(agent)["time"] = SimpleNamespace(**vars(time) | {"sleep": watched.sleep})

    def report() -> None:
        for context in last:
            for rank, process in enumerate(context.processes):
                if process.exitcode:
                    sys.stderr.write(_ending_of("failed", rank, process))
        last.clear()

    def started(*args: Any, **options: Any) -> Any:
        report()
        last.append(start(*args, **options))
        _answer_for_silent(last[0], options["args"][RETURNED])
        watched.watch(last[0], options["args"][RETURNED])
        return last[0]

    vars(mp)["start_processes"] = started
    try:
        yield
    finally:
        report()
        vars(mp)["start_processes"] = start
        vars(agent)["time"] = time
