"""Torch's flight recorder: the collectives of this process, with their numbers."""

from __future__ import annotations

import json
from typing import Any

from torch._C import _distributed_c10d


def running_collectives() -> list[dict[str, Any]]:
    """Return the flight recorder's records of collectives that began and have not ended."""
    text = _distributed_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=True)  # type: ignore[attr-defined]
    entries = json.loads(text).get("entries", [])
    return [entry for entry in entries if not entry["retired"]]
