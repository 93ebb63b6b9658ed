"""NCCL for persistent ranks: which backend is used, communicators made at once, aborts in threads.

Nothing here is private to torch. Observed in torch 2.9 to 2.15 and NCCL 2.27 to 2.30:

- A communicator that is created by the first collective waits in sockets that we cannot cut, and it
  cannot be aborted before it is complete. With a bound device (``device_id=``) the communicator is
  created with the group. The group's members meet in our store first (`Joining.meet`), where a wait
  can be interrupted. But torch then splits the communicator of a subgroup from that of WORLD, which
  takes all ranks of WORLD: `unbound` prevents this.
- ``abort()`` returns when NCCL has ended, without a reliable time limit: each abort has a thread.
- After an abort nothing raises. Waits for the GPU return, and kernels queued behind them run.
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
    # We abort collectives: torch's watchdog must not end the process, nor delay our abort.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_FR_DUMP_ON_TIMEOUT": "0",
    # A warning, on every rank, about a behaviour that is wanted here.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
    # The other implementation in torch 2.15: there, collectives that the user holds must not
    # outlive their groups, and its flight recorder does not see renewed groups.
    "TORCH_DIST_USE_NCCL2": "0",
}
"""Settings of torch's NCCL for persistent ranks; a user's own values take precedence. Each new
group reads them, so they stay in the environment, which processes that a cell starts inherit."""
CLEAN_UP_ONLY = "2"
LIBRARY = "libnccl.so.2"
NAME = "nccl"
SHARED_GPU, SHARES_SINCE = "NCCL_MULTI_RANK_GPU_ENABLE", (2, 30)
"""The variable that NCCL reads, and since which version; older versions raise "Duplicate GPU
detected"."""


def environ() -> dict[str, str]:
    """Return `ENVIRON`, adapted to this process."""
    found = dict(ENVIRON)
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        # Torch then replaces 0 by its default, with which an error ends the process.
        found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = CLEAN_UP_ONLY
    return found


def default_backend() -> str:
    """Return the default backend of the ranks here: nccl if each rank has a GPU, else gloo."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not there or not dist.is_nccl_available():
        return "gloo"
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= there
    return NAME if alone or _shares() else "gloo"


def _shares() -> bool:
    """Whether NCCL is set to share a GPU among several ranks, and is able to."""
    return os.environ.get(SHARED_GPU) == "1" and version() >= SHARES_SINCE


def version() -> tuple[int, ...]:
    """Return the version of the loaded NCCL; torch knows only the one it was built with."""
    number = ctypes.c_int()
    with suppress(OSError, AttributeError):  # NCCL is part of torch's own library
        loaded = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        loaded.ncclGetVersion(ctypes.byref(number))
        return number.value // 10_000, number.value // 100 % 100, number.value % 100
    return tuple(torch.cuda.nccl.version())


def by_device(backend: str) -> dict[str, str]:
    """Return which backend serves which device: ``{"cpu": "gloo", "cuda": "nccl"}``."""
    return dict(dist.BackendConfig(dist.Backend(backend)).get_device_backend_map())


def bound_device(backend: str | None) -> torch.device | None:
    """Return the device to bind a group of this backend to; None without NCCL."""
    if backend is None or not torch.cuda.is_available():
        return None
    on_gpus = by_device(backend).get("cuda") == NAME
    return torch.device("cuda", torch.cuda.current_device()) if on_gpus else None


def part_of(group: Any, device: str = "cuda") -> Any:
    """Return a group's backend object for a device, or the group if torch does not show it."""
    part = getattr(group, "get_backend", getattr(group, "_get_backend", None))
    if part is None:
        return group
    found = part(torch.device(device))
    return getattr(found, "wrapped_pg", found)  # TORCH_DISTRIBUTED_DEBUG=DETAIL


@contextmanager
def unbound() -> Iterator[torch.device | None]:
    """Prevent splitting new groups from WORLD meanwhile; yield the device of WORLD."""
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
    """The aborts under way. Any thread may call `begin` and `over_within`."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[Any, threading.Thread]] = {}
        """For the id of each aborted object, the object itself (so that its id stays taken) and the
        thread."""
        self._lock = threading.Lock()

    def new(self, things: Iterable[Any]) -> list[Any]:
        """Return which of these groups, or parts of them, are not being aborted yet."""
        with self._lock:
            return [thing for thing in things if id(thing) not in self._begun]

    def begin(self, things: Iterable[Any]) -> None:
        """Start aborting those of `things` that are not being aborted yet."""
        for thing in self.new(things):
            thread = threading.Thread(
                target=_abort, args=(thing,), name="nbdist-abort", daemon=True
            )
            with self._lock:
                self._begun[id(thing)] = thing, thread
            thread.start()

    def over_within(self, seconds: float) -> bool:
        """Wait at most this long for all aborts; return whether they have ended."""
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = [thread for _, thread in self._begun.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    @property
    def any(self) -> bool:
        """Whether an abort was begun since the last `forget`."""
        return bool(self._begun)

    def forget(self) -> None:
        """Drop the aborted objects, once their aborts have ended."""
        with self._lock:
            self._begun.clear()


def _abort(thing: Any) -> None:
    with suppress(Exception):  # it was aborted before, or this rank is not in the group
        thing.abort()


def settled_within(seconds: float) -> bool:
    """Wait until this rank's GPU has finished its queued work; return whether it has. Main thread.

    A thread of its own waits for all streams, forever if one of them hangs.
    """
    device, done = torch.cuda.current_device(), threading.Event()

    def wait() -> None:
        with suppress(Exception):  # the next operation on the GPU raises the same error again
            torch.cuda.synchronize(device)
        done.set()

    threading.Thread(target=wait, name="nbdist-settle", daemon=True).start()
    return done.wait(seconds)
