"""Launches a torchrun job with several agents, on this machine and on other hosts.

The launcher serves the store in which the agents meet, and decides which agents take part in a
round, see `nbdist.backends.torch_private.elastic_agents`. It has one thread: local agents are its
forks, made before the store, which has threads.
"""

from __future__ import annotations

import argparse
import itertools
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from nbdist.errors import UsageError
from nbdist.launchers.scripts import guard, ssh
from nbdist.launchers.scripts import torchrun_agents as agents
from nbdist.launchers.scripts.torchrun_agents import Agent, Agents
from nbdist.machine.operating_system import die_with_parent

if TYPE_CHECKING:
    from types import FrameType

LOOK_SECONDS = 0.05
TOGETHER_SECONDS = 0.3
"""After one agent's failure, the others have this long to fail by themselves."""
END_SECONDS = 2.5
"""How long agents have to end, before the launcher ends and the guards kill them."""


class Node(msgspec.Struct, frozen=True):
    """A host and its agents."""

    host: str
    """The host's name for ssh; '' is this machine."""
    address: str
    """The address where its ranks listen."""
    sizes: list[int]
    """The number of ranks of each of its agents."""


class Nodes(msgspec.Struct, frozen=True):
    """A job with several agents."""

    nodes: list[Node]
    address: str
    """The address at which the launcher is reached."""
    least: int
    """The least number of agents with which the job goes on; all unless the job is elastic."""
    flags: list[str]
    """Flags of torchrun for every agent."""
    folder: str
    """The folder for the agents' files."""
    temp: str
    token: str
    cold: bool = False


@dataclass
class Place:
    """The agents of one host and their parent process, as the launcher sees them."""

    node: Node
    agents: Agents
    output: int = -1
    pid: int = 0
    started: guard.Started | None = None
    living: set[int] = field(default_factory=set)
    rest: bytes = b""

    @property
    def name(self) -> str:
        """The name that marks its output lines."""
        return self.node.host or "here"

    def start_here(self) -> None:
        """Fork the agents' parent from this process."""
        self.output, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._be_parent(theirs)
        os.close(theirs)

    def _be_parent(self, output: int) -> NoReturn:
        """Start the agents from this fork, and end it with them."""
        die_with_parent()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os._exit(agents.serve(self.agents))

    def start_guarded(self, temp: str) -> None:
        """Start the agents' parent under a guard, by ssh if the host is another one."""
        words = ssh.python(agents.__name__, msgspec.json.encode(self.agents).decode())
        environ = ssh.environ_there() if self.node.host else dict(os.environ)
        # Not the notebook's folder, whose files may hide modules; ranks change to it themselves.
        place = str(Path(self.agents.program).parent)
        order = guard.Order(words, environ, place, temp if self.node.host else "")
        self.output, theirs = os.pipe()
        self.started = guard.Started(self.node.host, order, output=theirs)
        os.close(theirs)

    def end(self) -> None:
        """Ask the agents' parent to end."""
        if self.started is not None:
            self.started.close()
        elif self.pid:
            os.kill(self.pid, signal.SIGTERM)

    def ended(self) -> int:
        """Wait for the agents' parent, whose output has ended; return its exit code."""
        if self.started is not None:
            return self.started.process.wait()
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


class Launcher:
    """Runs a job with several agents."""

    def __init__(self, wanted: Nodes, program: str) -> None:
        from nbdist.backends.torch_private import elastic_agents as private

        listener = private.listen(wanted.address)
        endpoint = f"{wanted.address}:{listener.getsockname()[1]}"
        self._wanted = wanted
        self._places = _places(wanted, endpoint, program)
        self._selector = selectors.DefaultSelector()
        self._done: set[int] = set()
        self._lost: set[int] = set()
        self._round = -1
        self._members: set[int] = set()
        """The agents in this round."""
        self._ranks: dict[int, range] = {}
        """The ranks of each agent in this round."""
        self._again = self._over = False
        """Whether the round is over, and whether the job is."""
        self._fail_at = self._end_at = float("inf")
        signal.signal(signal.SIGTERM, self._terminated)
        for place in self._places:
            if place.node.host or wanted.cold:
                continue
            place.start_here()
        self._table = private.Table(listener)
        for place in self._places:
            if place.node.host or wanted.cold:
                place.start_guarded(wanted.temp)
            self._selector.register(place.output, selectors.EVENT_READ, place)

    def _terminated(self, _: int, __: FrameType | None) -> None:
        self._fail_at = 0.0

    def run(self) -> int:
        """Serve until the last agent has ended; return the job's exit code."""
        while self._selector.get_map():
            for key, _ in self._selector.select(LOOK_SECONDS):
                self._read(key.data)
            now = time.monotonic()
            if now >= self._fail_at:
                self._fail_at, self._end_at = float("inf"), min(self._end_at, now + END_SECONDS)
                self._over = True
                for place in self._places:
                    place.end()
            if now >= self._end_at:
                return 1
            if not self._over:
                self._decide()
        return int(self._over or len(self._done) < self._wanted.least)

    def _read(self, place: Place) -> None:
        data = os.read(place.output, 1 << 16)
        lines = (place.rest + data).splitlines(keepends=True)
        place.rest = lines.pop() if data and lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            text = line.decode(errors="replace")
            told = agents.TOLD.fullmatch(text)
            if told:
                self._agent_ended(place, int(told[1]), int(told[2]))
            if not told or told[2] != "0":
                sys.stdout.write(f"[{place.name}] {text}")
        sys.stdout.flush()
        if not data:
            self._place_ended(place)

    def _agent_ended(self, place: Place, agent: int, code: int) -> None:
        place.living.discard(agent)
        (self._lost if code else self._done).add(agent)
        if code < 0 and not self._over:  # killed: its ranks died with it, unreported
            for rank in self._ranks.get(agent, ()):
                sys.stdout.write(f"[{place.name}] nbdist: rank {rank} (pid 0) ended with {code}\n")

    def _place_ended(self, place: Place) -> None:
        self._selector.unregister(place.output)
        os.close(place.output)
        code = place.ended()
        if place.living:
            who = "ssh to it" if place.node.host else "the parent of its agents"
            sys.stdout.write(f"nbdist: host {place.name} is lost: {who} ended with {code}\n")
            sys.stdout.flush()
            self._lost |= place.living
            place.living.clear()

    def _decide(self) -> None:
        """Begin a round, end one, or end the job."""
        living = {agent for place in self._places for agent in place.living}
        unable = self._lost and (self._round < 0 or len(living | self._done) < self._wanted.least)
        if not living:
            return
        if unable:
            self._fail_soon()
            return
        coming = {each for each in living if self._table.is_ready(self._round + 1, str(each))}
        if coming and self._done:
            self._fail_soon()  # they would wait for agents that have ended
        elif coming == living:
            self._round += 1
            self._table.begin(self._round, [str(each) for each in sorted(living)])
            self._members, self._again = living, False
            self._ranks = self._ranks_of(sorted(living))
        elif (coming or self._members & self._lost) and self._round >= 0 and not self._again:
            self._again = True
            self._table.end(self._round)

    def _ranks_of(self, order: list[int]) -> dict[int, range]:
        """Return the ranks of each agent, counted in this order."""
        sizes = [size for place in self._places for size in place.node.sizes]
        first, found = 0, {}
        for agent in order:
            found[agent] = range(first, first + sizes[agent])
            first += sizes[agent]
        return found

    def _fail_soon(self) -> None:
        self._fail_at = min(self._fail_at, time.monotonic() + TOGETHER_SECONDS)


def with_rendezvous(backend: str, endpoint: str, conf: str, flags: list[str]) -> list[str]:
    """Add our rendezvous to torchrun's flags, unless these name a rendezvous.

    Raises
    ------
    UsageError
        If the flags cannot be parsed.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name in ("backend", "endpoint", "conf"):
        parser.add_argument(f"--rdzv-{name}", f"--rdzv_{name}")
    try:
        theirs, rest = parser.parse_known_args(flags)
    except (argparse.ArgumentError, SystemExit) as err:  # an ambiguous flag would end the kernel
        raise UsageError(str(err)) from None
    if theirs.rdzv_backend or theirs.rdzv_endpoint:
        return flags
    confs = ",".join(filter(None, [conf, theirs.rdzv_conf]))
    ours = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={confs}"]
    return [*ours, *rest]


def _places(wanted: Nodes, endpoint: str, program: str) -> list[Place]:
    """Describe all agents, numbered in the order of their hosts."""
    places = []
    count = itertools.count()
    total = sum(len(node.sizes) for node in wanted.nodes)
    elastic = wanted.least < total
    for node in wanted.nodes:
        made = []
        for index, size in enumerate(node.sizes):
            number = next(count)
            conf = f"place={number},elastic={int(elastic)}"
            flags = [
                f"--nnodes={wanted.least}:{total}",
                f"--nproc-per-node={size}",
                f"--rdzv-id={wanted.token}",
                f"--log-dir={wanted.folder}/{number}",
                f"--local-addr={node.address}",
                *with_rendezvous("nbdist", endpoint, conf, wanted.flags),
            ]
            local = f"{index}/{len(node.sizes)}" if len(node.sizes) > 1 else ""
            made.append(Agent(number, flags, local))
        ours = Agents(made, program, wanted.token, wanted.cold)
        places.append(Place(node, ours, living={agent.place for agent in made}))
    return places


def launch(wanted: Nodes, program: str) -> None:
    """Run the launcher of a job; ends the process."""
    code = Launcher(wanted, program).run()
    sys.stdout.flush()
    os._exit(code)  # without waiting for the store's threads


def main() -> None:
    """Run the launcher by its command line: the nodes as JSON, and the file that ranks read."""
    launch(msgspec.json.decode(sys.argv[1], type=Nodes), sys.argv[2])


if __name__ == "__main__":
    main()
