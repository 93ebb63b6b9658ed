"""Notifies the process that what it publishes may have changed. Hub's thread.

So nobody compares all of it many times a second while nothing happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

listeners: list[Callable[[], None]] = []
"""Called after every possible change."""


def happened() -> None:
    """Notify all listeners."""
    for listener in listeners:
        listener()
