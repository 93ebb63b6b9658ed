"""NCCL as ranks that stay need it: communicators made at once, aborted without waiting for it.

Nothing here is private to torch. Read in torch 2.9 to 2.15 and NCCL 2.27 to 2.30:

- A communicator that is made by the first collective is made in sockets that nobody can cut, and
  cannot be aborted before it is whole. With a bound device (``device_id=``) it is made with the
  group, whose members meet in our store first (`Joining.meet`): who waits there can be freed. But
  torch then splits a subgroup's from WORLD's, which takes all ranks of WORLD: `unbound` keeps it
  from that.
- ``abort()`` waits until NCCL has let go, without a limit that holds: each has a thread of its own.
- After it nothing raises. What waits for the GPU goes on, and so do kernels queued behind.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ENVIRON = {
    # It is ours to abort. torch's watchdog must neither end the process nor sleep over it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_FR_DUMP_ON_TIMEOUT": "0",
    # A warning on every rank, of what is wanted here.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
    # torch 2.15 has another implementation: collectives that the user still holds must not outlive
    # its groups, and its flight recorder loses sight of those that are renewed.
    "TORCH_DIST_USE_NCCL2": "0",
}
"""What ranks that stay need of torch's NCCL; a user's own values go before. Each group that is made
reads them, so they stay in the environment, also that of what a cell starts."""
CLEAN_UP_ONLY = "2"
LIBRARY = "libnccl.so.2"
NAME = "nccl"
SHARED_GPU, SHARES_SINCE = "NCCL_MULTI_RANK_GPU_ENABLE", (2, 30)
"""What NCCL reads, and since when; those before raise "Duplicate GPU detected"."""


def environ() -> dict[str, str]:
    """Return what `ENVIRON` comes to in this process."""
    found = dict(ENVIRON)
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        # With that torch takes 0 for its default, by which an error ends the process.
        found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = CLEAN_UP_ONLY
    return found


def default_backend() -> str:
    """Return the backend of ranks here, if nobody asks for another: nccl with a GPU for each."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not there or not dist.is_nccl_available():
        return "gloo"
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= there
    return NAME if alone or _shares() else "gloo"


def _shares() -> bool:
    """Whether NCCL was told, and is able, to let several ranks have one GPU."""
    return os.environ.get(SHARED_GPU) == "1" and version() >= SHARES_SINCE


def version() -> tuple[int, ...]:
    """Return the version of the NCCL that is loaded; torch tells the one it was built with."""
    number = ctypes.c_int()
    with suppress(OSError, AttributeError):  # it is a part of torch's own library there
        loaded = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        if loaded.ncclGetVersion(ctypes.byref(number)) == 0:
            return number.value // 10_000, number.value // 100 % 100, number.value % 100
    return tuple(torch.cuda.nccl.version())


def by_device(backend: str) -> dict[str, str]:
    """Return which backend serves which device: ``{"cpu": "gloo", "cuda": "nccl"}``."""
    return dict(dist.BackendConfig(dist.Backend(backend)).get_device_backend_map())


def bound_device(backend: str | None) -> torch.device | None:
    """Return the device with which a group of this backend is to be made, None without NCCL."""
    if backend is None or not torch.cuda.is_available():
        return None
    on_gpus = by_device(backend).get("cuda") == NAME
    return torch.device("cuda", torch.cuda.current_device()) if on_gpus else None


def part_of(group: Any, device: str = "cuda") -> Any:
    """Return a group's part for a device; the group itself where torch does not give it away."""
    part = getattr(group, "get_backend", getattr(group, "_get_backend", None))
    if part is None:
        return group
    found = part(torch.device(device))
    return getattr(found, "wrapped_pg", found)  # TORCH_DISTRIBUTED_DEBUG=DETAIL


@contextmanager
def unbound() -> Iterator[torch.device | None]:
    """Let groups be made that are not split from WORLD; yields the device it is bound to."""
    world = dist.group.WORLD
    device = getattr(world, "bound_device_id", None)
    if world is None or device is None:
        yield None
        return
    world.bound_device_id = None
    try:
        yield device
    finally:
        world.bound_device_id = device


class Aborting:
    """Aborts that are under way. `begin` and `over_within` may be called by any thread."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[Any, threading.Thread]] = {}
        """By the id of what is aborted; it must live as long."""
        self._lock = threading.Lock()

    def new(self, things: Iterable[Any]) -> list[Any]:
        """Return which of these groups, or parts of them, are not being aborted yet."""
        with self._lock:
            return [thing for thing in things if id(thing) not in self._begun]

    def begin(self, things: Iterable[Any]) -> None:
        """Abort those that are not being aborted yet."""
        for thing in self.new(things):
            thread = threading.Thread(
                target=_abort, args=(thing,), name="nbdist-abort", daemon=True
            )
            with self._lock:
                self._begun[id(thing)] = thing, thread
            thread.start()

    def over_within(self, seconds: float) -> bool:
        """Wait for them all for so long; return whether they are over."""
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = [thread for _, thread in self._begun.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    @property
    def any(self) -> bool:
        """Whether anything was begun that is not forgotten."""
        return bool(self._begun)

    def forget(self) -> None:
        """Let go of what was aborted. It is over."""
        with self._lock:
            self._begun.clear()


def _abort(thing: Any) -> None:
    with suppress(Exception):  # it was aborted before, or is of no rank here: there is nothing left
        thing.abort()


def settled_within(seconds: float) -> bool:
    """Wait until this rank's GPU has done what was queued; return whether it has. Main thread.

    Another thread waits for all its streams; one that hangs it never leaves.
    """
    device, done = torch.cuda.current_device(), threading.Event()

    def wait() -> None:
        with suppress(Exception):  # an error that the next operation will raise again
            torch.cuda.synchronize(device)
        done.set()

    threading.Thread(target=wait, name="nbdist-settle", daemon=True).start()
    return done.wait(seconds)
