"""Torch's flight recorder: the collectives of this process, with their numbers."""

from __future__ import annotations

import json
from typing import Any

try:
    from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
        _dump_fr_trace_json as dump,
    )
except ImportError:  # a torch without it: waits are told by the Python line alone
    dump = None


def running_collectives() -> list[dict[str, Any]]:
    """Return the flight recorder's records of collectives that began and have not ended."""
    if dump is None:
        return []
    entries = json.loads(dump(includeCollectives=True, onlyActive=True)).get("entries", [])
    return [entry for entry in entries if not entry["retired"]]
