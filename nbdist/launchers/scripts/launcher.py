"""The interface of a script launcher (torchrun, horovodrun, python), and its data types."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.launchers.scripts.hosts import Reached


@dataclass(frozen=True)
class Elastic:
    """An elastic job, which goes on without ranks that die."""

    least: int
    """The least number of ranks with which the job goes on."""
    most: int | None = None
    discovery: str = ""
    """A program that prints the present hosts, for horovodrun."""


@dataclass(frozen=True)
class Launch:
    """The options of a launch."""

    np: int
    max_restarts: int
    hosts: dict[str, int]
    """The slots of each host, with the user's names for them; empty for this machine."""
    reached: Reached | None
    """The hosts other than this machine; None if there are none."""
    elastic: Elastic | None
    passed_on: list[str]
    """The launcher's own flags, from the user."""
    temp: str
    """The path of the job's temporary folder, made on each host."""
    cold: bool


class Failed(NamedTuple):
    """A rank that has failed, as its launcher reports it."""

    rank: int
    code: int
    """The exit code; negative for a signal."""
    pid: int
    """0 if the launcher does not say."""
    host: str = ""
    """A host that was lost with all its ranks; then `rank` has no meaning."""
    how: str = ""


@dataclass(frozen=True)
class Needs:
    """The requirements of a job on several hosts."""

    modules: list[str]
    """Modules that each host must be able to import."""
    options: list[str] = field(default_factory=list)
    """Further flags for ssh."""
    own_name: str = ""
    """Why other hosts must be able to resolve each host's own name, '' if they need not."""


class Launcher(Protocol):
    """A module of `nbdist.launchers.scripts` that launches scripts."""

    FOLDER: str
    """A folder for the launcher in the job's folder, removed when the job has ended."""
    RANK: str
    """The module that a rank runs, with the job's program file as its argument."""
    GOES_ON: bool
    """Whether the ranks of an elastic job run on when one is lost; otherwise all restart."""
    GIVEN_UP: str
    """Why this launcher may end an elastic job that loses a rank, '' if it does not."""
    WARM: tuple[str, ...]
    """Modules that the warm process imports for it, if they are installed."""

    def check(self, torch: str) -> None:
        """Raise `LaunchError` if it cannot run here; `torch` is a version, '' without torch."""

    def needs(self, passed_on: list[str]) -> Needs:
        """Return the requirements of a job on several hosts."""

    async def check_flags(self, passed_on: list[str]) -> None:
        """Raise `LaunchError` if these flags need something that is not installed."""

    def environ(self, token: str) -> dict[str, str | None]:
        """Return changes of the environment, which pass the token to all processes."""

    def arguments(self, wanted: Launch, folder: Path, token: str) -> list[str]:
        """Return the launcher's flags for a job with this folder."""

    def command(self, flags: list[str], program: str) -> list[str]:
        """Return the command line of the launcher."""

    def launch(self, flags: list[str], program: str) -> None:
        """Run the launcher in this process, with forks of it as ranks."""

    def failures(self, log: str) -> list[Failed]:
        """Return the ranks that failed by themselves, from the launcher's output."""


def launcher(name: str) -> Launcher:
    """Return the launcher with this name in `--launcher`."""
    module = "plain_python" if name == "python" else name
    return cast("Launcher", importlib.import_module(f"nbdist.launchers.scripts.{module}"))
