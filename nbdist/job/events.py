"""What a viewer of a job is sent: output, rich displays, notices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Text:
    """Output of the shown rank."""

    text: str


@dataclass(frozen=True)
class Shown:
    """A rich display of the shown rank; see `nbdist.wire.messages.Display`."""

    kind: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Notice:
    """A notice of ours; a later one with the same key replaces it, or removes it if it is empty."""

    key: str
    text: str
    warns: bool = False
    """Whether the notice is a warning, not information."""


Event = Text | Shown | Notice | None
"""An event for the viewer; None is the last one."""
