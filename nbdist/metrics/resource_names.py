"""Names and units of the resources measured on each rank, and the interval of the records."""

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
"""Up to this second of a job each second is recorded, then until twice this time every second one,
and so on."""
RAREST = 64
"""The longest interval in seconds: a rank's file has some 4 MB after a week."""


def interval(second: int) -> int:
    """Return the interval between records at this second of a job.

    It depends on nothing else, so that all ranks record the same seconds.
    """
    return min(RAREST, 1 << (second // EVERY_SECOND_UNTIL).bit_length())
