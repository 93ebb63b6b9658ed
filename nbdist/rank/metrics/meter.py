"""Measures this process's use of CPU, memory and GPU. The agent's thread."""

from __future__ import annotations

import warnings
from typing import Any

import psutil

from nbdist.rank.metrics import gpu
from nbdist.wire.activity import Vitals

LONG_SECONDS = 5.0
"""A wait for the GPU that is longer than this is not an ordinary step."""


class Meter:
    """Reads this process's use of CPU, memory and GPU; None where this cannot be read."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # psutil measures from call to call
        self._sees_gpu = True
        self._own: int | None = None
        self._held: int | None = None
        """The GPU's number, and the bytes reserved there, at the last reading."""
        self.device = "cpu"
        """The device at the last reading, by torch's name."""

    def read(self, waited: float = 0.0) -> Vitals:
        """Return the present use; the CPU's use is the mean since the last call.

        Parameters
        ----------
        waited
            Seconds the main thread has waited for other ranks. After a long wait, the last reading
            is repeated for the GPU: the waiting thread may hold the lock of its allocator.
        """
        with self._process.oneshot():
            rss, cpu = self._process.memory_info().rss, self._process.cpu_percent()
        if waited < LONG_SECONDS:
            self.device, self._own, self._held = gpu.device(), gpu.number(), gpu.memory()
        use = None if self._own is None else self._gpu_use(gpu.in_use(), self._own)
        return Vitals(rss, cpu, use, self._held)

    def _gpu_use(self, cuda: Any, own: int) -> float | None:
        """Return the GPU's utilization, which torch gets from NVML with nvidia-ml-py."""
        if not self._sees_gpu:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return float(cuda.utilization(own))
        except Exception:  # no NVML, no permission, an unsupported GPU
            self._sees_gpu = False
            return None
