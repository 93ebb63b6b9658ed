"""Reads torch's flight recorders, which list the collectives of this process.

Gloo has one recorder, NCCL another. NCCL's recorder asks the GPU when it is read, so its answer is
up to date; it knows when a collective was queued, not when the collective began.
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
"""None in a torch without this function: waits are then found from Python frames alone."""


ROOM = "TORCH_FR_BUFFER_SIZE"
"""Environment variable: how many collectives a recorder holds."""
OTHER_ROOM = "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""The older name of this variable, used only if `ROOM` is not set."""
LONG_SECONDS, SHARE, REST_SECONDS = 0.005, 0.005, 1.0
"""If reading takes longer than the first number, it may take only this share of the time, but is
done at least once in `REST_SECONDS`: reading holds the GIL."""

_rested = 0.0
"""The time until which the recorders are not read."""
_since = 0
"""When groups were formed, in nanoseconds. Aborted older collectives never count as ended."""


def hold_few() -> None:
    """Make the recorders hold only as many collectives as we read, unless the user sets more.

    Torch's default of 2,000 takes 25 ms to read. On a GPU many collectives may be queued.
    """
    if OTHER_ROOM not in os.environ:
        os.environ.setdefault(ROOM, "16" if gpus.visible(os.environ) == [] else "128")


def rests() -> bool:
    """Whether the recorders must not be read yet, because the last reading was slow."""
    return time.perf_counter() < _rested


def forget_older() -> None:
    """Ignore the records until now, because new groups are formed. Main thread."""
    global _since  # a process is one rank
    _since = time.time_ns()


def running_collectives() -> list[dict[str, Any]]:
    """Return the records of gloo's collectives that have begun and not ended."""
    return _read(_gloo)


def last() -> dict[str, dict[int, tuple[str, bool]]]:
    """Return gloo's last collectives since groups were formed.

    Returns
    -------
    dict
        For each group, by the number of the collective, its name and whether it has ended.
    """
    found: dict[str, dict[int, tuple[str, bool]]] = {}
    for each in _read(_gloo, everything=True):
        if each["time_created_ns"] >= _since:
            group = found.setdefault(str(each["process_group"][0]), {})
            group[int(each["collective_seq_id"])] = each["profiling_name"], each["retired"]
    return found


def on_gpu() -> list[dict[str, Any]]:
    """Return the records of NCCL's collectives that were queued and have not ended."""
    found = [each for each in _read(_nccl) if each["time_created_ns"] >= _since]
    if any(each["is_p2p"] for each in found):
        found = _without_strays(found)
    return found


def knows_gpu() -> bool:
    """Whether NCCL's recorder exists in this torch."""
    return _nccl is not None


def _without_strays(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the single operations of a batch of sends and receives, which never count as ended."""
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
    global _rested  # a process is one rank
    if dump is None:
        return []
    began = time.thread_time()
    told = json.loads(dump(includeCollectives=True, onlyActive=not everything))
    took = time.thread_time() - began
    if took > LONG_SECONDS:
        _rested = time.perf_counter() + min(took / SHARE, REST_SECONDS)
    return [each for each in told.get("entries", []) if everything or not each["retired"]]
