"""TorchElastic's agents where a job has several: on other hosts, or one for each rank.

They meet through a store that the job's launcher serves, and the launcher decides: it alone knows
which agents live. So a rendezvous needs no heartbeats and no waiting for those that might yet come.
What is said in the store of round N:

``ready/N/PLACE``
    An agent is there for this round; set by the agent.
``round/N``
    Who takes part, in the order of their ranks; set by the launcher.
``again/N``
    This round is over, since an agent was lost or starts its ranks anew; set by the launcher.
``restarts``
    How many of the rounds were restarts, which `--max-restarts` bounds; ``restart/N`` counts the
    agents that ask for the one after round N.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher import api

from nbdist.backends.torch_private import elastic
from nbdist.machine import sockets
from nbdist.wire.agent_rounds import LOST_OTHERS, ROUND

if TYPE_CHECKING:
    from collections.abc import Callable

BACKEND = "nbdist"
LOOK_SECONDS = 0.02
STORE_SECONDS = 60.0
"""The launcher must answer by then."""
LOSS_SECONDS = 10.0
"""A rank that lost others is not to blame if one of them is known to be lost by then."""


class Meeting(RendezvousHandler):
    """How an agent meets the others. The agent's main thread."""

    def __init__(self, params: RendezvousParameters) -> None:
        host, _, port = params.endpoint.rpartition(":")
        self._store: Any = TCPStore(
            host, int(port), is_master=False, timeout=timedelta(seconds=STORE_SECONDS)
        )
        self._run, self._address = params.run_id, params.local_addr
        self.place = params.config["place"]
        self.elastic = params.config.get("elastic") == "1"
        self.round = -1

    def get_backend(self) -> str:
        """See base class."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """See base class."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all agents that live are there."""
        self.round += 1
        self._store.set(f"ready/{self.round}/{self.place}", "")
        while not self._store.check([f"round/{self.round}"]):
            time.sleep(LOOK_SECONDS)
        order = json.loads(self._store.get(f"round/{self.round}"))
        os.environ[ROUND] = str(self.round)
        store = PrefixStore(f"in/{self.round}", self._store)
        rank = order.index(self.place)
        where = RendezvousStoreInfo.build(rank, store, local_addr=self._address)
        return RendezvousInfo(store, rank, len(order), where)

    def restarts(self) -> int:
        """Return how many rounds were restarts."""
        return int(self._store.add("restarts", 0))

    def may_restart(self, most: int) -> bool:
        """Ask for a restart; return whether there are any left."""
        first = self._store.add(f"restart/{self.round}", 1) == 1
        return int(self._store.add("restarts", int(first))) <= most

    def is_over(self) -> bool:
        """Whether the round is."""
        return bool(self._store.check([f"again/{self.round}"]))

    def over_soon(self) -> bool:
        """Wait a little for the end of the round; return whether it came."""
        until = time.monotonic() + LOSS_SECONDS
        while not self.is_over() and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return self.is_over()

    def num_nodes_waiting(self) -> int:
        """Return whether the agent's ranks are to be started anew, as TorchElastic asks for it."""
        return int(self.is_over())

    def is_closed(self) -> bool:
        """See base class."""
        return False

    def set_closed(self) -> None:
        """See base class; the launcher closes."""

    def get_run_id(self) -> str:
        """See base class."""
        return self._run

    def shutdown(self) -> bool:
        """See base class; the launcher closes."""
        return True


class Agent(LocalElasticAgent):
    """Knows a rank that failed from one that only lost the others. The process's main thread."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        meeting = worker_group.spec.rdzv_handler
        if isinstance(meeting, Meeting):  # or a person has asked for another rendezvous
            # Ranks are told how often all of them were started, whichever agent's rank failed.
            self._remaining_restarts = worker_group.spec.max_restarts - meeting.restarts()
        sys.stderr.write(f"{BACKEND}: {worker_group.group_world_size} agents have met\n")
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state != WorkerState.FAILED:
            return result
        codes = {}
        for rank, failure in result.failures.items():
            codes[rank] = failure.exitcode
            told = f"rank {rank} (pid {failure.pid}) ended with {failure.exitcode}"
            sys.stderr.write(f"{BACKEND}: {told}\n")
        meeting, spec = worker_group.spec.rdzv_handler, worker_group.spec
        if isinstance(meeting, Meeting):
            # What TorchElastic looks at next, and takes one from.
            self._remaining_restarts = int(self._goes_on(meeting, codes, spec.max_restarts))
        return result

    def _goes_on(self, meeting: Meeting, codes: dict[int, int], most: int) -> bool:
        """Whether this agent takes part in another round."""
        others = all(code in LOST_OTHERS for code in codes.values())
        if others and (meeting.elastic or most) and meeting.over_soon():
            return True
        return bool(most) and meeting.may_restart(most)

    def _exit_barrier(self) -> None:
        """Wait for nobody: the store is the launcher's, and stays."""


def run(flags: list[str], entry: Callable[[str], None] | None, program: str) -> None:
    """Be an agent.

    Parameters
    ----------
    flags
        torchrun's own.
    entry, program
        What its workers, forks of this process, call; without it, they are the fresh processes that
        the flags name.
    """
    rendezvous_handler_registry.register(BACKEND, Meeting)
    vars(api)["LocalElasticAgent"] = Agent
    if entry is None:
        torchrun.main(flags)
    else:
        elastic.launch(flags, entry, program)


class Table:
    """The store at which agents meet, as the launcher sees it. The launcher's only thread.

    Parameters
    ----------
    listener
        Where it listens; taken over.
    """

    def __init__(self, listener: Any) -> None:
        host, port = listener.getsockname()
        self._store: Any = TCPStore(
            host, port, is_master=True, wait_for_workers=False,
            master_listen_fd=listener.detach(), timeout=timedelta(seconds=STORE_SECONDS),
        )  # fmt: skip

    def is_ready(self, number: int, place: str) -> bool:
        """Whether an agent is there for a round."""
        return bool(self._store.check([f"ready/{number}/{place}"]))

    def begin(self, number: int, places: list[str]) -> None:
        """Let a round begin."""
        self._store.set(f"round/{number}", json.dumps(places))

    def end(self, number: int) -> None:
        """Say that a round is over."""
        self._store.set(f"again/{number}", "")


def listen(host: str) -> Any:
    """Return a socket for a `Table`."""
    return sockets.listen(host)
