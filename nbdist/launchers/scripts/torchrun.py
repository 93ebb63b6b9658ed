"""The launcher ``torchrun``, by its command line or in a process forked from the warm process."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import msgspec

from nbdist.errors import LaunchError, UsageError
from nbdist.launchers.scripts import torchrun_on_hosts
from nbdist.launchers.scripts.hosts import Reached, taken
from nbdist.launchers.scripts.launcher import Failed, Needs
from nbdist.launchers.scripts.torchrun_on_hosts import Node, Nodes
from nbdist.machine.sockets import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.launchers.scripts.launcher import Launch

RANK = "nbdist.rank.script_rank"
FOLDER = "elastic"
"""The folder for TorchElastic's files while the job runs."""
GOES_ON = False
GIVEN_UP = ""
WARM = (
    RANK,
    "nbdist.backends.torch_private.elastic",
    "nbdist.backends.torch_private.elastic_agents",
)
FAILED = re.compile(
    r"^(?!\[).*(?:failed|silent) \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)",
    re.MULTILINE,
)
"""TorchElastic's line about a failed worker; with several agents it does not know the rank.

The line about a worker that ended by ``os._exit(0)`` is ours, see `torch_private.elastic`.
"""
ENDED = re.compile(r"^\[(\S+)\] nbdist: rank (\d+) \(pid (\d+)\) ended with (-?\d+)$", re.MULTILINE)
"""Our agents' line about a failed rank."""
HOST = re.compile(r"^nbdist: host (\S+) is lost: (.*)$", re.MULTILINE)
"""Our launcher's line about a lost host."""
NODES = "--nbdist-nodes="
"""The prefix of the only flag of a job with several agents."""

OURS = (
    "--help", "--module", "--no-python", "--run-path", "--standalone", "--nnodes",
    "--nproc-per-node", "--node-rank", "--log-dir", "--local-addr", "--master-addr",
    "--master-port", "--max-restarts", "--start-method",
)  # fmt: skip
"""Flags that nbdist sets itself: number and place of ranks, kind of program."""


def check(torch: str) -> None:
    """Raise `LaunchError` if PyTorch, which contains torchrun, is not installed."""
    if not torch:
        raise LaunchError(
            "--launcher torchrun needs PyTorch, which this notebook's Python does not have"
        )


def needs(passed_on: list[str]) -> Needs:
    """Return the requirements of a job on several hosts."""
    del passed_on
    return Needs(["torch"])


async def check_flags(passed_on: list[str]) -> None:
    """Do nothing: no flag needs further software."""
    del passed_on


def environ(token: str) -> dict[str, str | None]:
    """Return variables for torchrun, which itself passes the token to its workers."""
    del token
    # With a shared store, a restart would find the addresses of ranks that have ended.
    return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def arguments(wanted: Launch, folder: Path, token: str) -> list[str]:
    """Return torchrun's flags for a job.

    A job with one agent has its rendezvous in a file of the job's folder, so it needs no port. A
    job with several agents uses our own launcher, see `nbdist.launchers.scripts.torchrun_on_hosts`.
    """
    if wanted.reached is not None or wanted.elastic is not None:
        return [NODES + msgspec.json.encode(_nodes(wanted, folder, token)).decode()]
    return [
        "--nnodes=1",
        f"--nproc-per-node={wanted.np}",
        f"--rdzv-id={token}",
        f"--log-dir={folder / FOLDER}",  # the default leaves a folder in the temp folder
        "--local-addr=127.0.0.1",
        f"--max-restarts={wanted.max_restarts}",
        *torchrun_on_hosts.with_rendezvous(
            "c10d", str(folder / "rendezvous"), "store_type=file", wanted.passed_on
        ),
    ]


def _nodes(wanted: Launch, folder: Path, token: str) -> Nodes:
    """Describe the agents: one for each host, or one for each rank if the job is elastic."""
    reached = wanted.reached or Reached(LOOPBACK, {}, {})
    counts: dict[str, int] = {}
    for host, ranks in taken(wanted.hosts or {"": wanted.np}, wanted.np).items():
        place = host if host in reached.addresses else ""  # '' is this machine, by any name
        counts[place] = counts.get(place, 0) + ranks
    made = [
        Node(
            host, reached.addresses.get(host, reached.address),
            [1] * ranks if wanted.elastic else [ranks],
        )
        for host, ranks in counts.items()
    ]  # fmt: skip
    return Nodes(
        made, reached.address,
        wanted.elastic.least if wanted.elastic else len(made),
        [f"--max-restarts={wanted.max_restarts}", *wanted.passed_on],
        str(folder / FOLDER), wanted.temp, token, wanted.cold,
    )  # fmt: skip


def refuse(passed_on: list[str]) -> str:
    """Return why flags cannot be passed on to torchrun for a cell, '' if they can."""
    for word in passed_on:
        flag = word.split("=")[0].replace("_", "-")
        if flag in ("-h", "-m") or (
            len(flag) > len("--") and any(own.startswith(flag) for own in OURS)
        ):
            return f"{word} is set by nbdist: use -np and --max-restarts of the cell"
    if passed_on and not passed_on[0].startswith("-"):
        return f"{passed_on[0]} is not a flag: the script is the cell"
    try:
        torchrun_on_hosts.with_rendezvous("", "", "", passed_on)
    except UsageError as err:
        return str(err)
    return ""


def command(flags: list[str], program: str) -> list[str]:
    """Return the command line of the launcher."""
    if flags[0].startswith(NODES):
        return [
            sys.executable,
            "-m",
            torchrun_on_hosts.__name__,
            flags[0].removeprefix(NODES),
            program,
        ]
    return [sys.executable, "-m", "torch.distributed.run", *flags, "-m", RANK, program]


def launch(flags: list[str], program: str) -> None:
    """Run the launcher in this process, with forks of it as workers."""
    from nbdist.backends.torch_private import elastic  # torch is imported already
    from nbdist.rank import script_rank

    if flags[0].startswith(NODES):
        torchrun_on_hosts.launch(
            msgspec.json.decode(flags[0].removeprefix(NODES), type=Nodes), program
        )
    elastic.launch(flags, script_rank.main, program)


def failures(log: str) -> list[Failed]:
    """Return the workers that failed, and those that ended without returning."""
    alone = [Failed(int(rank), int(code), int(pid)) for code, rank, pid in FAILED.findall(log)]
    several = [Failed(int(rank), int(code), int(pid)) for _, rank, pid, code in ENDED.findall(log)]
    hosts = [Failed(-1, 1, 0, host, how) for host, how in HOST.findall(log)]
    return alone + several + hosts
