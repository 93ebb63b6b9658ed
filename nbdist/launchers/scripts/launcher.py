"""What the hub and the warm process need to know of a launcher of scripts."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.launchers.scripts.hosts import Reached


@dataclass(frozen=True)
class Elastic:
    """Ranks that come and go: the job goes on without those that die."""

    least: int
    """How few ranks may go on."""
    most: int | None = None
    discovery: str = ""
    """A program that tells which hosts there are, for horovodrun."""


@dataclass(frozen=True)
class Launch:
    """What a launcher is asked for."""

    np: int
    max_restarts: int
    hosts: dict[str, int]
    """Slots by host, as a person names them; this machine if it is empty."""
    reached: Reached | None
    """Those hosts that are not this machine; None if there are none."""
    elastic: Elastic | None
    passed_on: list[str]
    """Flags of its own."""
    temp: str
    """A folder for the time of the job, on each host its own."""
    cold: bool


class Failed(NamedTuple):
    """A rank that has ended badly, as its launcher tells it."""

    rank: int
    code: int
    """Its exit code; a signal is a negative number."""
    pid: int
    """0 if the launcher does not say."""
    host: str = ""
    """A host that is lost, and all ranks on it with it; `rank` is none of them then."""
    how: str = ""


@dataclass(frozen=True)
class Needs:
    """What a job on several hosts needs of them."""

    modules: list[str]
    """Each must be able to import these."""
    options: list[str] = field(default_factory=list)
    """What ssh is told besides."""
    own_name: str = ""
    """Why each host's own name must lead to an address at which the others find it."""


class Launcher(Protocol):
    """A module of `nbdist.launchers` that launches scripts."""

    FOLDER: str
    """A folder in the job's own, for the launcher's use; removed when the job has ended."""
    RANK: str
    """The module that a rank runs, with the file that says what the job is."""
    GOES_ON: bool
    """Whether ranks of an elastic job run on when one is lost; otherwise all begin again."""
    GIVEN_UP: str
    """Why it ends a job that could go on without a rank, '' if it does not."""
    WARM: tuple[str, ...]
    """What the warm process imports for it, as far as it is there."""

    def check(self, torch: str) -> None:
        """Raise `LaunchError` if it cannot work here; `torch` is its version, '' without."""

    def needs(self, passed_on: list[str]) -> Needs:
        """Return what a job on several hosts needs of them."""

    async def check_flags(self, passed_on: list[str]) -> None:
        """Raise `LaunchError` if what is passed on asks for something that is not there."""

    def environ(self, token: str) -> dict[str, str | None]:
        """Return what it changes in the environment; its processes must know the token."""

    def arguments(self, wanted: Launch, folder: Path, token: str) -> list[str]:
        """Return its own flags for a job, whose folder is given."""

    def command(self, flags: list[str], program: str) -> list[str]:
        """Return the plain command line."""

    def launch(self, flags: list[str], program: str) -> None:
        """Do the same in this process, whose ranks then are forks of it."""

    def failures(self, log: str) -> list[Failed]:
        """Return the ranks that failed by themselves, from what it printed."""


def launcher(name: str) -> Launcher:
    """Return a launcher by the name that `--launcher` takes."""
    module = "plain_python" if name == "python" else name
    return cast("Launcher", importlib.import_module(f"nbdist.launchers.scripts.{module}"))
