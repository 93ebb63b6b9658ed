"""What trackers are given: numbers, and whatever else somebody else's tracker can show."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbdist.rank.metrics.logger import log

if TYPE_CHECKING:
    from collections.abc import Mapping


def log_numbers(values: Mapping[str, Any], step: int | None, prefix: str = "") -> None:
    """Log the numbers of a mapping, those of mappings in it as ``outer/inner``; leave the rest."""
    for name, value in values.items():
        if isinstance(value, dict):
            log_numbers(value, step, f"{prefix}{name}/")
        else:
            with suppress(TypeError):  # texts and pictures, which others' trackers keep
                log({f"{prefix}{name}": value}, step=step)
