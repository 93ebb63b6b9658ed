"""TorchElastic's agents of a job with several agents: on other hosts, or one for each rank.

The agents meet through a store that the job's launcher serves. The launcher decides who takes part,
because only the launcher knows which agents are alive: so a rendezvous needs no heartbeats and does
not wait for agents that might come later. The keys of round N in the store:

``ready/N/PLACE``
    An agent is ready for this round; set by the agent.
``round/N``
    The agents that take part, in the order of their ranks; set by the launcher.
``again/N``
    This round is over, because an agent was lost or restarts its ranks; set by the launcher.
``restarts``
    How many of the rounds were restarts, limited by `--max-restarts`; ``restart/N`` counts the
    agents that ask for a restart after round N.
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
from nbdist.wire.elastic_rounds import LOST_OTHERS, ROUND

if TYPE_CHECKING:
    from collections.abc import Callable

BACKEND = "nbdist"
LOOK_SECONDS = 0.02
STORE_SECONDS = 60.0
"""The launcher must answer within this time."""
LOSS_SECONDS = 10.0
"""A rank that failed because of others is excused if their loss is known within this time."""


class Meeting(RendezvousHandler):
    """The rendezvous of an agent with the other agents. The agent's main thread."""

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
        """Wait until all living agents are ready."""
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
        """Ask for a restart; return whether the limit allows it."""
        first = self._store.add(f"restart/{self.round}", 1) == 1
        return int(self._store.add("restarts", int(first))) <= most

    def is_over(self) -> bool:
        """Whether the round is over."""
        return bool(self._store.check([f"again/{self.round}"]))

    def over_soon(self) -> bool:
        """Wait up to `LOSS_SECONDS` for the end of the round; return whether it has ended."""
        until = time.monotonic() + LOSS_SECONDS
        while not self.is_over() and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return self.is_over()

    def num_nodes_waiting(self) -> int:
        """Return 1 if the agent must restart its ranks, in the form that TorchElastic expects."""
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
    """An agent that distinguishes failed ranks from ranks that lost other ranks. Main thread."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        meeting = worker_group.spec.rdzv_handler
        if isinstance(meeting, Meeting):  # False if the user chose another rendezvous
            # Ranks see how often the whole job was restarted, whichever agent's rank failed.
            self._remaining_restarts = worker_group.spec.max_restarts - meeting.restarts()
        sys.stderr.write(f"{BACKEND}: {worker_group.group_world_size} agents have joined\n")
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
            # TorchElastic reads this number next, and reduces it by one.
            self._remaining_restarts = int(self._goes_on(meeting, codes, spec.max_restarts))
        return result

    def _goes_on(self, meeting: Meeting, codes: dict[int, int], most: int) -> bool:
        """Whether this agent takes part in another round."""
        others = all(code in LOST_OTHERS for code in codes.values())
        if others and (meeting.elastic or most) and meeting.over_soon():
            return True
        return bool(most) and meeting.may_restart(most)

    def _exit_barrier(self) -> None:
        """Do not wait: the store belongs to the launcher, and outlives the agents."""


def run(flags: list[str], entry: Callable[[str], None] | None, program: str) -> None:
    """Run an agent in this process until its ranks have ended.

    Parameters
    ----------
    flags
        Flags of torchrun.
    entry, program
        The function, and its argument, that workers forked from this process call; if `entry` is
        None, the workers are new processes, as the flags say.
    """
    rendezvous_handler_registry.register(BACKEND, Meeting)
    vars(api)["LocalElasticAgent"] = Agent
    if entry is None:
        torchrun.main(flags)
    else:
        elastic.launch(flags, entry, program)


class Table:
    """The store in which agents meet, used by the launcher in its only thread.

    Parameters
    ----------
    listener
        The store's listening socket; the store becomes its owner.
    """

    def __init__(self, listener: Any) -> None:
        host, port = listener.getsockname()
        self._store: Any = TCPStore(
            host, port, is_master=True, wait_for_workers=False,
            master_listen_fd=listener.detach(), timeout=timedelta(seconds=STORE_SECONDS),
        )  # fmt: skip

    def is_ready(self, number: int, place: str) -> bool:
        """Whether an agent is ready for a round."""
        return bool(self._store.check([f"ready/{number}/{place}"]))

    def begin(self, number: int, places: list[str]) -> None:
        """Start a round with these agents."""
        self._store.set(f"round/{number}", json.dumps(places))

    def end(self, number: int) -> None:
        """Say that a round is over."""
        self._store.set(f"again/{number}", "")


def listen(host: str) -> Any:
    """Return a socket for a `Table`."""
    return sockets.listen(host)
