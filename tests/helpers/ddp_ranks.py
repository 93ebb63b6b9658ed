"""Rank processes for tests of the ddp backend: without kernel and agent, with pipes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from nbdist.backends.ddp.rank_group import Ddp
from nbdist.backends.groups.recovery import IN_PLACE, Recovery
from tests.helpers.waiting import allowed, until

LIMIT = 60.0
"""The limit for everything here, in seconds on an idle machine."""
SAVE = "save coverage"
SAVED = 3.0
"""How long a rank may take to save its coverage, in seconds: a stopped rank never answers."""
FREE = 10.0
"""The limit for freeing a rank, in seconds; a rank that is not freed would wait for minutes."""

_FORKS = multiprocessing.get_context("forkserver")
# DDP imports `torch._dynamo` for its first model, which takes seconds; this module imports pytest.
_FORKS.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "tests.helpers.ddp_jobs", __name__]
)


class Freed(RuntimeError):
    """A rank has raised an error; the message is the rank's traceback."""


def warm_up(folder: Path) -> None:
    """Start the process that imports torch once, and from which all ranks are forked."""
    multiprocessing.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))  # up to torch 2.9 a killed rank leaves a folder there
        forkserver.ensure_running()


def cool_down() -> None:
    """End this process, and the helper that multiprocessing has started with it."""
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    del multiprocessing.current_process()._config["tempdir"]  # type: ignore[attr-defined]
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@dataclass
class Rank:
    """A rank's process: the main thread serves the pipe `jobs`, another thread `control`."""

    process: Any
    jobs: Connection
    control: Connection

    def ask(self, name: str, *args: Any) -> Any:
        """Call a method of the backend in the rank's second thread."""
        self.control.send((name, args))
        assert self.control.poll(allowed(LIMIT)), f"the rank did not answer to {name}"
        return self.control.recv()

    def result(self, limit: float = LIMIT) -> Any:
        """Return the result of the rank's job; raise `Freed` if the job has raised an error."""
        if not self.jobs.poll(allowed(limit)):
            raise TimeoutError
        good, value = self.jobs.recv()
        if not good:
            raise Freed(value)
        return value

    def end(self) -> None:
        """Kill the process if it still runs, after it has saved its coverage."""
        if "COVERAGE_PROCESS_CONFIG" in os.environ:
            with suppress(OSError):  # it has ended
                self.control.send((SAVE, ()))
                self.control.poll(allowed(SAVED))
        self.process.kill()
        self.process.join(allowed(LIMIT))
        self.process.close()
        self.jobs.close()
        self.control.close()


@dataclass
class Ranks:
    """A number of ranks, and the little that a hub does for them."""

    size: int
    way: str = IN_PLACE
    """The way to recover groups."""
    private: bool = True
    """Whether private parts of torch are used; without them groups cannot be renewed in place."""
    generation: int = 0
    ranks: list[Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = [self._born(number) for number in range(self.size)]

    def form(self) -> list[dict[str, str]]:
        """Begin a generation on all ranks; return what each rank has lost by that."""
        self.generation += 1
        port = self.ranks[0].ask("open_store")
        return self.run(_form, port, self.generation, self.way)

    def form_only(self, numbers: list[int]) -> None:
        """Let some ranks begin a generation; they wait for the other ranks."""
        self.generation += 1
        port = self.ranks[0].ask("open_store")
        self.start(_form, port, self.generation, self.way, ranks=numbers)

    def start(self, job: Callable[..., Any], *args: Any, ranks: Iterable[int] = ()) -> None:
        """Start a job on some ranks; by default on all."""
        for number in ranks or range(self.size):
            self.ranks[number].jobs.send((job, args))

    def run(self, job: Callable[..., Any], *args: Any, ranks: Iterable[int] = ()) -> list[Any]:
        """Run a job on some ranks; return its results."""
        self.start(job, *args, ranks=ranks)
        return [self.ranks[number].result() for number in ranks or range(self.size)]

    def abort(self, ranks: Iterable[int] = ()) -> None:
        """Free some ranks (by default all), as the hub does after the first failure."""
        for number in ranks or range(self.size):
            self.ranks[number].ask("abort")

    def outcomes(self, limit: float = FREE) -> list[str]:
        """Return the error of each rank's job after the rank was freed; ``""`` for no error."""
        said = []
        for rank in self.ranks:
            try:
                rank.result(limit)
            except Freed as error:
                said.append(str(error))
            else:
                said.append("")
        return said

    def wait_until_done(self, number: int) -> None:
        """Wait until a rank's job has ended; `result` still returns its result."""
        assert self.ranks[number].jobs.poll(allowed(LIMIT))

    def wait_until_waiting(self, number: int, op: str = "") -> Any:
        """Wait until a rank is inside a collective; return its description of the collective."""

        def waiting() -> Any:
            found = self.ranks[number].ask("waiting")
            return found if found is not None and op in found.op else None

        told = f"Rank {number} never waited in {op or 'a collective'}."
        return until(waiting, LIMIT, told=lambda: told)

    def replace(self, number: int) -> None:
        """Kill a rank and start another in its place."""
        self.ranks[number].end()
        self.ranks[number] = self._born(number)

    def end(self) -> None:
        """Kill all ranks that still run."""
        for rank in self.ranks:
            rank.end()

    def _born(self, number: int) -> Rank:
        jobs, far_jobs = _FORKS.Pipe()
        control, far_control = _FORKS.Pipe()
        recovery = Recovery(groups="" if self.private else "the test says so")
        process = _FORKS.Process(
            target=_be_rank,
            args=(number, self.size, recovery, far_jobs, far_control),
            daemon=True,
        )
        process.start()
        far_jobs.close()
        far_control.close()
        return Rank(process, jobs, control)


def _be_rank(
    number: int, size: int, recovery: Recovery, jobs: Connection, control: Connection
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}
    backend = Ddp(rank=number, local_rank=number, world_size=size, recovery=recovery)
    backend.install()
    threading.Thread(target=_answer, args=(backend, control), daemon=True).start()
    kept: dict[str, Any] = {"ddp": backend}
    while True:
        job, args = jobs.recv()
        try:
            jobs.send((True, job(kept, *args)))
        except Exception:  # the test gets it
            jobs.send((False, traceback.format_exc()))


def _answer(backend: Ddp, control: Connection) -> None:
    while True:
        name, args = control.recv()
        if name == SAVE:
            coverage = sys.modules["coverage"].Coverage.current()
            coverage.stop()
            control.send(coverage.save())
            continue
        control.send(_functions() if name == "functions" else getattr(backend, name)(*args))


def _functions() -> list[str]:
    """Return the names of the functions that the main thread is in, the innermost first."""
    frames = traceback.walk_stack(sys._current_frames()[threading.main_thread().ident or 0])
    return [frame.f_code.co_name for frame, _ in frames]


def _form(kept: dict[str, Any], port: int, generation: int, way: str) -> dict[str, str]:
    lost: dict[str, str] = kept["ddp"].form(port, generation, way, kept)
    return lost
