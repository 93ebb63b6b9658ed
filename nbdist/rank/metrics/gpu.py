"""Finds the GPU of this process, on any thread: torch's current device differs by thread."""

from __future__ import annotations

import sys
from typing import Any

from nbdist.machine import gpus


def in_use() -> Any:
    """Return ``torch.cuda`` if this process uses a GPU, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def number() -> int | None:
    """Return the number of the GPU on which this process computes, None without one.

    This is the rank's own GPU or, if that holds no tensors, the GPU with most of its tensors.
    """
    cuda = in_use()
    there = 0 if cuda is None else cuda.device_count()
    if not there:
        return None
    own = gpus.own(there)
    # Allocators other than torch's own may open a GPU when they are asked about it.
    if there == 1 or _held(cuda, own) or cuda.get_allocator_backend() != "native":
        return own
    held = [_held(cuda, each) for each in range(there)]
    return held.index(max(held)) if any(held) else own


def memory() -> int | None:
    """Return the bytes that this process has reserved on its GPU, None without one."""
    own = number()
    return None if own is None else _held(in_use(), own)


def _held(cuda: Any, which: int) -> int:
    try:
        return int(cuda.memory_reserved(which))
    except RuntimeError:  # an allocator without this number
        return 0


def device() -> str:
    """Return the device that this process uses, by torch's name; "cpu" if none is known yet."""
    own = number()
    if own is not None:
        return f"cuda:{own}"
    if "torch_xla" in sys.modules:
        return "xla"
    mps = getattr(sys.modules.get("torch"), "mps", None)
    return "mps" if mps is not None and _holds(mps) else "cpu"


def _holds(mps: Any) -> bool:
    """Whether this process has tensors on an Apple GPU."""
    available = sys.modules["torch"].backends.mps.is_available()
    return bool(available and mps.current_allocated_memory())


def settled() -> bool:
    """Whether this process's GPU has done its work, so that reading a tensor waits for nothing."""
    cuda, own = in_use(), number()
    return cuda is None or own is None or bool(cuda.current_stream(own).query())
