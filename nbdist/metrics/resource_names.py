"""What is measured of each rank over a whole job: names, units, and how often."""

from __future__ import annotations

CPU, MEMORY, GPU, GPU_MEMORY = "CPU", "memory", "GPU", "GPU memory"
RECEIVED, SENT = "network received", "network sent"
UNITS = {
    CPU: "% of one core",
    MEMORY: "B",
    GPU: "%",
    GPU_MEMORY: "B",
    RECEIVED: "B/s",
    SENT: "B/s",
}

EVERY_SECOND_UNTIL = 1200
"""Seconds of a job in which each second is kept; in twice the time every other, and so on."""
RAREST = 64
"""Seconds between two that are kept, at the most: a rank's file has some 4 MB after a week."""


def interval(second: int) -> int:
    """Return how many seconds lie between those that are kept, so many after a job's beginning.

    It depends on nothing else, so that all ranks keep the same seconds.
    """
    return min(RAREST, 1 << (second // EVERY_SECOND_UNTIL).bit_length())
