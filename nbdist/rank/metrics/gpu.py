"""The GPU of this process, told on any thread: torch's current one is another on each."""

from __future__ import annotations

import sys
from typing import Any

from nbdist.machine import gpus


def in_use() -> Any:
    """Return ``torch.cuda`` where this process uses a GPU, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def number() -> int | None:
    """Return which GPU this process computes on, None where it uses none.

    That is the rank's own; or the one that holds most of its tensors, if its own holds none.
    """
    cuda = in_use()
    there = 0 if cuda is None else cuda.device_count()
    if not there:
        return None
    own = gpus.own(there)
    # Others than torch's own allocator may take hold of a GPU that is only asked about.
    if there == 1 or _held(cuda, own) or cuda.get_allocator_backend() != "native":
        return own
    held = [_held(cuda, each) for each in range(there)]
    return held.index(max(held)) if any(held) else own


def memory() -> int | None:
    """Return the bytes that this process has on its GPU, None where it uses none."""
    own = number()
    return None if own is None else _held(in_use(), own)


def _held(cuda: Any, which: int) -> int:
    try:
        return int(cuda.memory_reserved(which))
    except RuntimeError:  # an allocator that does not tell
        return 0


def device() -> str:
    """Return what this process computes on, in torch's words, as far as it has chosen."""
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
