"""The main program of a persistent rank: an ipyparallel engine with our agent in it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import process
from pathlib import Path
from typing import Any

import msgspec
from ipyparallel.engine.app import IPEngine
from traitlets.config import Config

from nbdist.backends import choice
from nbdist.rank import px_cells
from nbdist.rank.agent import Agent
from nbdist.rank.looking import vitals
from nbdist.rank.rank_spec import RankSpec
from nbdist.rank.running import libraries
from nbdist.rank.running.execute import CellRunner
from nbdist.rank.running.mirror import Mirror
from nbdist.rank.values.pickles import serve_workers


class RankEngine(IPEngine):
    """An engine that starts our agent when its shell exists."""

    spec: RankSpec

    def parse_command_line(self, argv: Any = None) -> None:  # traitlets' name
        """Do nothing: there is no command line, and parsing takes 10 ms."""

    def init_signal(self) -> None:
        """Ignore SIGINT between cells in silence: a cell may end just before its interrupt."""
        super().init_signal()
        # Not SIG_IGN, which programs that a cell starts would inherit.
        signal.signal(signal.SIGINT, lambda *_: None)

    async def complete_registration(self, *args: Any) -> None:  # passed on
        """Finish ipyparallel's own start, then start the agent."""
        with _without_debugger():
            await super().complete_registration(*args)
        try:
            start_agent(self.spec, self.kernel, self.loop)
        except Exception:  # ipyparallel would hide the error
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)


@contextmanager
def _without_debugger() -> Iterator[None]:
    """Keep ipykernel from loading debugpy, which is unusable here and takes 40 MB a rank."""
    name = "debugpy"
    absent = name not in sys.modules
    if absent:
        sys.modules[name] = None  # type: ignore[assignment]  # its import fails then
    try:
        yield
    finally:
        if absent:
            del sys.modules[name]


def start_agent(spec: RankSpec, kernel: Any, loop: Any) -> Agent:  # ipyparallel has no types
    """Make this engine a rank: define its names, create backend and agent. Main thread."""
    shell = kernel.shell
    backend = choice.load(
        spec.backend, rank=spec.rank, local_rank=spec.local_rank, world_size=spec.world_size,
        recovery=spec.recovery,
    )  # fmt: skip
    names = {
        "rank": spec.rank,
        "local_rank": spec.local_rank,
        "world_size": spec.world_size,
        "device": backend.device(),
        # As in a script; IPython's own `exit` would end the rank.
        "exit": sys.exit,
        "quit": sys.exit,
    } | backend.names()
    runner = CellRunner(spec.rank, shell, Mirror(shell, own=spec.torchrun_environ()), names)
    runner.define_names()
    px_cells.admit(kernel, runner.lock)
    backend.install()
    libraries.welcome(backend, spec.local_rank)
    serve_workers()
    agent = Agent(spec, loop, runner, backend, shell)
    agent.start()
    return agent


REGISTER_SECONDS = 120.0
"""Time limit for the controller's answer; ipyparallel's 5 s, and even 30 s, were too short on busy
machines."""
LOOP_STOPPED = "Event loop stopped"
"""Tornado's error message when the agent stops the event loop to end the rank."""


def main(spec: RankSpec) -> None:
    """Run a rank until the hub ends it."""
    folder = Path(spec.folder)
    log = os.open(folder / f"rank{spec.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(spec.torchrun_environ() | spec.environ)
    if spec.cwd:
        os.chdir(spec.cwd)
    # Killed DataLoader workers leave temporary files, which the supervisor removes with this
    # folder.
    process.current_process()._config["tempdir"] = spec.temp  # type: ignore[attr-defined]
    vitals.answer_stack_signal(str(folder / f"rank{spec.rank}.stacks"))
    torch = sys.modules.get("torch")
    if torch is not None:
        outermost = os.environ["OMP_NUM_THREADS"].partition(",")[0].strip()
        asked = int(outermost) if outermost.isdecimal() else 0
        torch.set_num_threads(asked or spec.threads)
    _let_forks_be_ended()
    config = Config()
    config.IPEngine.id = spec.rank
    config.IPEngine.enable_nanny = False
    config.IPEngine.out_stream_factory = px_cells.EngineStream
    config.IPEngine.cluster_id = spec.cluster_id
    config.IPEngine.log_level = 30
    config.IPEngine.timeout = REGISTER_SECONDS
    # The supervisor notices the controller's death; an engine must not end because it was frozen.
    config.IPEngine.max_heartbeat_misses = 0
    config.ProfileDir.location = spec.profile_dir
    config.HistoryManager.hist_file = ":memory:"
    engine = RankEngine.instance(config=config, connection_info_env=spec.engine)
    engine.spec = spec
    engine.initialize([])
    try:
        engine.start()
    except RuntimeError as err:
        if LOOP_STOPPED not in str(err):
            raise


def _let_forks_be_ended() -> None:
    """Let SIGTERM end processes that cells fork, instead of calling ipyparallel's handler there.

    The signal is blocked during a fork. Otherwise the handler could still receive it in the child,
    and the sender (a pool that ends its workers) would wait forever.
    """

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)


if __name__ == "__main__":
    main(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=RankSpec))
