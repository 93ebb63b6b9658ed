"""Logs the numbers in what a library passes to its trackers, which may contain other values."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbdist.rank.metrics.logger import log

if TYPE_CHECKING:
    from collections.abc import Mapping


def log_numbers(values: Mapping[str, Any], step: int | None, prefix: str = "") -> None:
    """Log the numbers in a mapping, those in inner mappings as ``outer/inner``; ignore the rest."""
    for name, value in values.items():
        if isinstance(value, dict):
            log_numbers(value, step, f"{prefix}{name}/")
        else:
            with suppress(TypeError):  # strings and pictures
                log({f"{prefix}{name}": value}, step=step)
