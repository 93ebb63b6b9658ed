"""Torch's flight recorders: the collectives of this process, with their numbers.

Gloo writes to one, NCCL to another. That of NCCL looks at the GPU when it is read, so that what it
says is true then; it knows when a collective was queued, not when it began.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from torch._C import _distributed_c10d

from nbdist.machine import gpus

_gloo = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
_nccl = getattr(_distributed_c10d, "_dump_nccl_trace_json", None)
"""None in a torch without it: waits are told by the Python line alone."""


ROOM = "TORCH_FR_BUFFER_SIZE"
"""Environment name: how many collectives a recorder holds."""
OTHER_ROOM = "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""Its older name, which counts only where the other is not set."""
LONG_SECONDS, SHARE, REST_SECONDS = 0.005, 0.005, 1.0
"""A recorder that takes so long to read is read in this part of the time only, but once a second:
whoever reads it has Python's lock."""

_rested = 0.0
"""Until when the recorders are not read."""
_since = 0
"""When groups were formed, in nanoseconds. What was broken off before is never noted as ended."""


def hold_few() -> None:
    """Have recorders hold no more than is looked at here, unless the user wants more.

    Torch's own 2,000 take 25 ms to read. On a GPU many collectives may be under way.
    """
    if OTHER_ROOM not in os.environ:
        os.environ.setdefault(ROOM, "16" if gpus.visible(os.environ) == [] else "128")


def rests() -> bool:
    """Whether reading has just taken so long that it is not to be done again yet."""
    return time.perf_counter() < _rested


def forget_older() -> None:
    """Leave out what was recorded until now: groups are formed anew. Main thread."""
    global _since  # a process is one rank
    _since = time.time_ns()


def running_collectives() -> list[dict[str, Any]]:
    """Return the records of gloo's collectives that began and have not ended."""
    return _read(_gloo)


def on_gpu() -> list[dict[str, Any]]:
    """Return the records of NCCL's collectives that were queued and have not ended."""
    found = [each for each in _read(_nccl) if each["time_created_ns"] >= _since]
    if any(each["is_p2p"] for each in found):
        found = _without_strays(found)
    return found


def knows_gpu() -> bool:
    """Whether `on_gpu` can tell anything."""
    return _nccl is not None


def _without_strays(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the parts of a batch of sends and receives: none of them is ever noted as ended."""
    every = _read(_nccl, everything=True)
    batches = {_number(e) for e in every if _is_batch(e) and e["time_created_ns"] >= _since}
    return [
        each
        for each in found
        if not each["is_p2p"] or _is_batch(each) or _number(each) not in batches
    ]


def _number(record: dict[str, Any]) -> tuple[str, int]:
    return str(record["process_group"][0]), int(record["p2p_seq_id"])


def _is_batch(record: dict[str, Any]) -> bool:
    return str(record["profiling_name"]).endswith("coalesced")


def _read(dump: Any, *, everything: bool = False) -> list[dict[str, Any]]:
    global _rested  # see there
    if dump is None:
        return []
    began = time.thread_time()
    told = json.loads(dump(includeCollectives=True, onlyActive=not everything))
    took = time.thread_time() - began
    if took > LONG_SECONDS:
        _rested = time.perf_counter() + min(took / SHARE, REST_SECONDS)
    return [each for each in told.get("entries", []) if everything or not each["retired"]]
