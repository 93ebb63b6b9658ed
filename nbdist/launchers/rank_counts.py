"""The number of ranks: check the one asked for, choose a default."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.machine import gpus
from nbdist.machine.amounts import in_bytes
from nbdist.wire.shared_memory import free_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANK_BYTES = 42 * 10**6
"""The memory of an idle rank that it does not share; see benchmarks."""


def check_size(size: int) -> int:
    """Return `size` if this many ranks are possible.

    Raises
    ------
    UsageError
        If `size` is below 1, or this many ranks do not fit into memory.
    """
    if size < 1:
        msg = f"-np {size}: at least one rank is needed"
        raise UsageError(msg)
    free = free_memory()
    if size * RANK_BYTES > free:
        msg = (
            f"-np {size}: that many ranks need {in_bytes(size * RANK_BYTES)} before they do "
            f"anything, and this machine has {in_bytes(free)} free"
        )
        raise UsageError(msg)
    return size


def default_size(chosen: Sequence[int] | None, env: Mapping[str, str] | None) -> int:
    """Return one rank for each GPU that the ranks can use, or 2.

    Parameters
    ----------
    chosen
        The GPUs in ``--gpus``.
    env
        Variables that the ranks get in addition.
    """
    return len(chosen) if chosen else gpus.count({**os.environ, **(env or {})}) or 2


def core_count() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
