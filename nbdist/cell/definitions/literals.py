"""Writes small plain values (numbers, strings, lists, dicts) as Python source."""

from __future__ import annotations

import math
import pprint
from typing import Any

MOST_TEXT = 600
"""The most characters of a value that is written into the script."""


def written(value: Any) -> str | None:
    """Return the source of a small plain value; None for other values."""
    if not _is_plain(value, 4):
        return None
    inner = containers(value)
    if len(set(inner)) < len(inner):
        return None  # a container that occurs twice must stay one object
    text = pprint.pformat(value, width=96, sort_dicts=False)
    return text if len(text) <= MOST_TEXT else None


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in (bool, int, type(None)):
        return True
    if kind is float:
        return math.isfinite(value)
    if kind in (str, bytes):
        return len(value) <= MOST_TEXT
    if kind not in (list, tuple, dict, set) or depth < 0 or len(value) > MOST_TEXT:
        return False
    if kind is set and not value:
        return False
    inner = [*value, *value.values()] if kind is dict else list(value)
    return all(_is_plain(each, depth - 1) for each in inner)


def containers(value: Any) -> list[int]:
    """Return the identities of the lists, dicts and sets in a plain value."""
    if not isinstance(value, (list, tuple, dict, set)):
        return []
    inner = [*value, *value.values()] if isinstance(value, dict) else list(value)
    own = [] if isinstance(value, tuple) else [id(value)]
    return own + [found for each in inner for found in containers(each)]
