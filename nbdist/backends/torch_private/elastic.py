"""TorchElastic's agent run in this process."""

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
"""The logger of what starts the workers."""
LOOK_SECONDS = 0.5
"""The agent looks at its workers so often where none has anything to say."""
RETURNED = 5
"""Which argument of TorchElastic's worker holds, by rank, the queues of returned values."""


class _Watched:
    """The workers of an agent, which sleeps between two looks until one has something to say."""

    def __init__(self) -> None:
        self._unheard: set[Any] = set()
        """Of each worker what becomes readable when it returns, and when it ends."""

    def watch(self, context: Any, returned: dict[int, Any]) -> None:
        """Listen to workers that have just been started, and to no others."""
        readers = {getattr(queue, "_reader", None) for queue in returned.values()} - {None}
        self._unheard = readers | {process.sentinel for process in context.processes}

    def sleep(self, seconds: float) -> None:
        """Do the agent's `time.sleep`; each of them ends it once."""
        self._unheard -= set(connection.wait(self._unheard, max(seconds, LOOK_SECONDS)))


def launch(arguments: list[str], entry: Callable[[str], None], path: str) -> None:
    """Do what ``torchrun ARGUMENTS`` does, with workers forked from this process.

    Parameters
    ----------
    arguments
        torchrun's own flags.
    entry
        Called with `path` in every worker.
    """
    with _no_gpu_opened():
        config, _, _ = torchrun.config_from_args(torchrun.parse_args([*arguments, "script"]))
    config.start_method = "fork"
    assert config.logs_specs is not None
    logging.getLogger(MULTIPROCESSING).addFilter(_without_trace)
    tempfile.tempdir = config.logs_specs.root_log_dir  # it would leave files behind
    name_callers_quickly()
    _meet_at_once()
    with _exit_codes_told():
        elastic_launch(config, entry)(path)


@contextmanager
def _no_gpu_opened() -> Iterator[None]:
    """Let TorchElastic look for no GPU: this process would open it, and its forks could not.

    It looks for one only to choose a default NUMA binding, and torch's own default is none.
    """
    look = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = look


def _stack() -> list[inspect.FrameInfo]:
    """Return what `inspect.stack` does, without the lines of source: in no time."""
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
    """Let TorchElastic know its callers' names, which it puts into its records, for less.

    Looking for their source took it half of a launch, and the longer the more was imported.
    """
    for module in LOOKING_AROUND:
        vars(module)["inspect"] = SimpleNamespace(stack=_stack, getmodule=inspect.getmodule)


def _meet_at_once() -> None:
    """Leave out the pause, of 0.3 s at most, that keeps many agents from meeting all at once."""
    delay = vars(dynamic_rendezvous).get("_delay")

    def not_by_chance(seconds: Any) -> None:
        if delay is not None and not isinstance(seconds, tuple):  # between what it is drawn
            delay(seconds)

    vars(dynamic_rendezvous)["_delay"] = not_by_chance


def _without_trace(record: logging.LogRecord) -> bool:
    """Take the traceback from a record that a worker has failed; it is always TorchElastic's own.

    torch imports `torch._dynamo` to format one, 2 s between a rank's death and the others' end.
    """
    record.exc_info = None
    return True


def _answer_for_silent(context: Any, returned: dict[int, Any]) -> None:
    """Return None for workers that end by ``os._exit(0)``.

    To torchrun's command line that is a success; of workers that are functions, TorchElastic
    would wait for the value for ever.
    """
    join = context.join
    answered: set[int] = set()

    def joined(*args: Any, **options: Any) -> Any:
        try:
            return join(*args, **options)
        finally:  # it raises where another has failed, as a rule since this one has gone
            for rank in sorted(returned.keys() - answered):
                answer(rank, context.processes[rank])

    def answer(rank: int, process: Any) -> None:
        if not returned[rank].empty():  # TorchElastic takes it out next
            answered.add(rank)
        elif process.exitcode == 0:
            answered.add(rank)
            sys.stderr.write(_told("silent", rank, process))
            returned[rank].put(None)

    context.join = joined


def _told(how: str, rank: int, process: Any) -> str:
    return f"{how} (exitcode: {process.exitcode}) local_rank: {rank} (pid: {process.pid})\n"


@contextmanager
def _exit_codes_told() -> Iterator[None]:
    """Print how every worker ended that did not end well, in the words of TorchElastic.

    Of forked workers it names only one by itself, often one that has lost another.
    """
    start = vars(mp)["start_processes"]
    last: list[Any] = []
    watched = _Watched()
    vars(agent)["time"] = SimpleNamespace(**vars(time) | {"sleep": watched.sleep})

    def tell() -> None:
        for context in last:
            for rank, process in enumerate(context.processes):
                if process.exitcode:
                    sys.stderr.write(_told("failed", rank, process))
        last.clear()

    def started(*args: Any, **options: Any) -> Any:
        tell()
        last.append(start(*args, **options))
        _answer_for_silent(last[0], options["args"][RETURNED])
        watched.watch(last[0], options["args"][RETURNED])
        return last[0]

    vars(mp)["start_processes"] = started
    try:
        yield
    finally:
        tell()
        vars(mp)["start_processes"] = start
        vars(agent)["time"] = time
