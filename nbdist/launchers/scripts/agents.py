"""The agents of one host, where a job has several: forked, watched, and ended together.

A child of the launcher on this machine; on others ``python -m nbdist.launchers.scripts.agents``
under a guard. It prints how each of them ended, for the launcher.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import signal
import sys
from typing import Any

import msgspec

from nbdist.errors import NbdistError
from nbdist.machine.operating_system import die_with_parent, why_not_fork
from nbdist.rank.rank_spec import CLUSTER_NAME
from nbdist.wire.agent_rounds import LOCAL

RANK = "nbdist.rank.script_rank"
MODULES = (RANK, "nbdist.backends.torch_private.elastic_agents")
ENDED = "nbdist: agent {} ended with {}\n"
TOLD = re.compile(r"nbdist: agent (\d+) ended with (-?\d+)\n")


class Agent(msgspec.Struct, frozen=True):
    """One of them."""

    place: int
    """Which of the job's agents it is: ranks are counted in this order."""
    flags: list[str]
    """torchrun's."""
    local: str = ""
    """See `nbdist.wire.agent_rounds.LOCAL`."""


class Agents(msgspec.Struct, frozen=True):
    """Those of one host."""

    agents: list[Agent]
    program: str
    token: str
    cold: bool


def serve(wanted: Agents) -> int:
    """Start the agents, wait for all of them; return 1 if one of them ended badly."""
    ending = False

    def end(*_: Any) -> None:
        nonlocal ending
        ending = True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    pids: dict[int, int] = {}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until all are there
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


def _be(agent: Agent, wanted: Agents) -> None:
    """Be an agent; does not return."""
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
    except BaseException as err:  # the agent's own end is told by its exit code
        sys.excepthook(type(err), err, err.__traceback__)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Be the agents' parent on a host whose warm process is not ours."""
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
