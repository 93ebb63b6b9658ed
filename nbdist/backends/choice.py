"""Chooses a rank's backend (ddp, horovod, xla, none), and defines the interface of all backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nbdist.backends.horovod import engine_ranks
from nbdist.backends.models.variable_paths import has
from nbdist.errors import LaunchError, UsageError
from nbdist.wire.group_reports import Outline, Standing

if TYPE_CHECKING:
    from collections.abc import Collection

    from nbdist.backends.groups.recovery import Recovery
    from nbdist.wire.group_reports import Digest, GroupInfo, Waiting

FITTING = {
    "ddp": ("engines", "torchrun"),
    "none": ("engines", "torchrun", "horovodrun", "python"),
    "horovod": ("horovodrun", "engines"),
    "xla": ("kernel", "torchrun"),
}
"""For each backend, the launchers that can start its ranks."""
LAUNCHERS = ("engines", "torchrun", "horovodrun", "python", "kernel")
BACKENDS = tuple(backend for backend, launchers in FITTING.items() if "engines" in launchers)
"""The backends that persistent engines can use."""
CANNOT_SEND = "with --backend none, ranks cannot send anything to each other"


def check_fit(backend: str, launcher: str) -> None:
    """Raise `UsageError` if this launcher cannot start ranks with this backend."""
    for kind, name, names in ("backend", backend, FITTING), ("launcher", launcher, LAUNCHERS):
        if name not in names:
            raise UsageError(f"unknown {kind} {name!r}; there are {', '.join(names)}")
    if launcher not in FITTING[backend]:
        fit = " or ".join(FITTING[backend])
        raise UsageError(f"backend {backend} does not go with launcher {launcher}, but with {fit}")


def check_torch(version: str) -> None:
    """Raise `LaunchError` if `version` is '': persistent ranks need torch for DDP."""
    if not version:
        msg = (
            "--backend ddp needs PyTorch, which this notebook's Python does not have. "
            'Install it with `pip install "nbdist[torch]"` and restart the kernel.'
        )
        if "tensorflow" in engine_ranks.parts():
            msg += " Or use --backend horovod: Horovod is installed for TensorFlow."
        raise LaunchError(msg)


class Backend(Protocol):
    """How ranks communicate; `nbdist.backends.ddp.rank_group.Ddp` explains each method."""

    name: str
    broken_off: set[str]
    """Collectives that were aborted while the GPU went on with the work queued behind them. The
    reader empties the set."""
    reset: dict[str, str]
    """Variables that have lost what they kept between steps when the group was formed, and what
    this was. The reader empties it."""

    def device(self) -> Any: ...  # a torch.device, or a word without torch
    def names(self) -> dict[str, Any]: ...
    def install(self) -> None: ...
    def open_store(self) -> int: ...
    def form(
        self,
        port: int,
        generation: int,
        way: str = "",
        namespace: dict[str, object] | None = None,
        *,
        fsdp: str = "",
    ) -> dict[str, str]: ...
    def meet_at(self, port: int) -> None: ...
    def begin(self, namespace: dict[str, object], job: str) -> None: ...
    def settle(self, namespace: dict[str, object], broken_in: str) -> Standing: ...
    def works(self) -> bool: ...
    def abort(self) -> None: ...
    def refuse(self) -> None: ...
    def admit(self) -> None: ...
    def goes_on_when_freed(self) -> bool: ...
    def formed(self) -> bool: ...
    def groups(self) -> list[GroupInfo]: ...
    def waiting(self) -> Waiting | None: ...
    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str] = (), *, every: bool = True
    ) -> dict[str, Digest]: ...
    def weigh(self, namespace: dict[str, object]) -> int: ...
    def outline(self, namespace: dict[str, object], path: str) -> Outline | None: ...
    def sync(
        self, namespace: dict[str, object], path: str, source: int, group: str = ""
    ) -> None: ...


class NoBackend:
    """Ranks that do not communicate (`--backend none`)."""

    name = "none"

    def __init__(self) -> None:
        self.broken_off: set[str] = set()
        self.reset: dict[str, str] = {}

    def device(self) -> str:
        """Return "cpu", as a word: torch may not be installed."""
        return "cpu"

    def names(self) -> dict[str, Any]:
        """Return no names: this backend defines none for a cell."""
        return {}

    def install(self) -> None:
        """Do nothing: there is no group."""

    def open_store(self) -> int:
        """Return 0: there is no store."""
        return 0

    def form(
        self,
        port: int,
        generation: int,
        way: str = "",
        namespace: dict[str, object] | None = None,
        *,
        fsdp: str = "",
    ) -> dict[str, str]:
        """Do nothing: there is no group, and nothing is lost."""
        del port, generation, way, namespace, fsdp
        return {}

    def meet_at(self, port: int) -> None:
        """Do nothing: this backend has no store for the environment's address."""

    def begin(self, namespace: dict[str, object], job: str) -> None:
        """Do nothing: there is nothing that a cell could break."""

    def settle(self, namespace: dict[str, object], broken_in: str) -> Standing:
        """Return that nothing is broken."""
        del namespace, broken_in
        return Standing(broken=False)

    def works(self) -> bool:
        """Return True: there is no group."""
        return True

    def abort(self) -> None:
        """Do nothing: no rank waits for another rank."""

    def refuse(self) -> None:
        """Do nothing: there are no collectives."""

    def admit(self) -> None:
        """Do nothing, as `refuse`."""

    def goes_on_when_freed(self) -> bool:
        """Return False: `abort` does nothing."""
        return False

    def formed(self) -> bool:
        """Return True: there is no group that could be missing."""
        return True

    def groups(self) -> list[GroupInfo]:
        """Return no groups."""
        return []

    def waiting(self) -> Waiting | None:
        """Return None: no rank waits for another rank."""
        return None

    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str] = (), *, every: bool = True
    ) -> dict[str, Digest]:
        """Return no digests: ranks that do not communicate need not hold equal models."""
        del namespace, jobs, every
        return {}

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return 0, as `checksums` reads nothing."""
        del namespace
        return 0

    def outline(self, namespace: dict[str, object], path: str) -> Outline | None:
        """Say that nothing can be copied; None if there is no variable at this path."""
        return Outline({}, CANNOT_SEND) if has(namespace, path) else None

    def sync(self, namespace: dict[str, object], path: str, source: int, group: str = "") -> None:
        """Raise: the ranks cannot send anything to each other."""
        del namespace, path, source, group
        raise RuntimeError(CANNOT_SEND)


def load(name: str, *, rank: int, local_rank: int, world_size: int, recovery: Recovery) -> Backend:
    """Return the backend of this name."""
    if name == "none":
        return NoBackend()
    if name == "horovod":
        from nbdist.backends.horovod.engine_ranks import Horovod  # needs Horovod

        return Horovod(rank=rank, local_rank=local_rank, world_size=world_size)
    from nbdist.backends.ddp.rank_group import Ddp  # needs torch

    return Ddp(rank=rank, local_rank=local_rank, world_size=world_size, recovery=recovery)
