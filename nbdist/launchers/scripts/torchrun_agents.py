"""Forks, watches and ends a host's TorchElastic agents, in a job with several agents.

On this machine it runs in a child of the launcher; on other hosts as ``python -m
nbdist.launchers.scripts.torchrun_agents`` under a guard. It prints how each agent ended, for the
launcher.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import signal
import sys
from typing import Any, NoReturn

import msgspec

from nbdist.errors import NbdistError
from nbdist.machine.operating_system import die_with_parent, why_not_fork
from nbdist.rank.rank_spec import CLUSTER_NAME
from nbdist.wire.elastic_rounds import LOCAL

RANK = "nbdist.rank.script_rank"
MODULES = (RANK, "nbdist.backends.torch_private.elastic_agents")
ENDED = "nbdist: agent {} ended with {}\n"
TOLD = re.compile(r"nbdist: agent (\d+) ended with (-?\d+)\n")


class Agent(msgspec.Struct, frozen=True):
    """An agent of TorchElastic."""

    place: int
    """The agent's number in the job; ranks are counted in this order."""
    flags: list[str]
    """Flags of torchrun."""
    local: str = ""
    """See `nbdist.wire.elastic_rounds.LOCAL`."""


class Agents(msgspec.Struct, frozen=True):
    """The agents of one host."""

    agents: list[Agent]
    program: str
    token: str
    cold: bool


def serve(wanted: Agents) -> int:
    """Start the agents and wait for all of them; return 1 if one has failed."""
    ending = False

    def end(*_: Any) -> None:
        nonlocal ending
        ending = True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    pids: dict[int, int] = {}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until all are started
    signal.signal(signal.SIGTERM, end)
    os.environ[CLUSTER_NAME] = wanted.token
    for agent in wanted.agents:
        pid = os.fork()
        if pid == 0:
            _be(agent, wanted)
        pids[pid] = agent.place
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    worst = 0
    while pids:
        pid, status = os.wait()
        place = pids.pop(pid, None)
        if place is not None:
            code = os.waitstatus_to_exitcode(status)
            worst = max(worst, int(code != 0 and not ending))
            sys.stdout.write(ENDED.format(place, code))
            sys.stdout.flush()
    return worst


def _be(agent: Agent, wanted: Agents) -> NoReturn:
    """Run an agent in this process, and end it."""
    code = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if agent.local:
            os.environ[LOCAL] = agent.local
        from nbdist.backends.torch_private import elastic_agents as agents

        if wanted.cold:
            agents.run([*agent.flags, "-m", RANK, wanted.program], None, "")
        else:
            script: Any = sys.modules[RANK]
            agents.run(agent.flags, script.main, wanted.program)
        code = 0
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else int(err.code is not None)
    except BaseException as err:  # its exit code reports the failure
        sys.excepthook(type(err), err, err.__traceback__)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Run the parent of the agents on another host, where there is no warm process."""
    wanted = msgspec.json.decode(sys.argv[1], type=Agents)
    for name in MODULES:
        with contextlib.suppress(NbdistError):
            importlib.import_module(name)
    if not wanted.cold and (why := why_not_fork()):
        sys.stderr.write(f"ranks are not forked here: {why}\n")
        wanted = msgspec.structs.replace(wanted, cold=True)
    gc.collect()
    gc.freeze()
    sys.exit(serve(wanted))


if __name__ == "__main__":
    main()
