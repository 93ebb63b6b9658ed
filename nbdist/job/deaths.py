"""How the process of a rank ended, and the words for it."""

from __future__ import annotations

import signal

import msgspec


class Death(msgspec.Struct, frozen=True, tag=True):
    """How a rank's process ended."""

    rank: int
    pid: int
    signum: int
    code: int
    out_of_memory: bool
    """Whether the system's OOM killer has probably killed it."""
    at: float
    line: int | None
    """The last known line in the cell."""
    asked: bool = False
    """Whether we killed it at the end of a countdown."""


def how_died(death: Death) -> str:
    """Describe how a process ended."""
    if death.asked:
        return "could not be interrupted and was killed"
    if death.out_of_memory:
        return "was killed by SIGKILL, most likely by the operating system for lack of memory"
    if death.signum:
        return f"was killed by {name_signal(death.signum)}"
    return f"exited with code {death.code}"


def name_signal(signum: int) -> str:
    """Return a signal's name, or its number if Python has no name (real-time signals)."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
