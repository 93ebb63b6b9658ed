"""What this process takes of its machine. The agent's thread."""

from __future__ import annotations

import warnings
from typing import Any

import psutil

from nbdist.rank.metrics import gpu
from nbdist.wire.activity import Vitals

LONG_SECONDS = 5.0
"""What is queued on a GPU for so long is no ordinary step any more."""


class Meter:
    """Reads this process's use of CPU, memory and GPU; what cannot be read is None."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # it is told since the call before
        self._sees_gpu = True
        self._own: int | None = None
        self._held: int | None = None
        """The GPU's number, and the bytes it had there when that was asked last."""
        self.device = "cpu"
        """What it computed on then, in torch's words."""

    def read(self, waited: float = 0.0) -> Vitals:
        """Return what it takes now, the CPU since the last call.

        Parameters
        ----------
        waited
            Seconds the main thread has waited for other ranks. If that is long the GPU's allocator
            is not asked, which may be locked by who waits: what it said last is told.
        """
        with self._process.oneshot():
            rss, cpu = self._process.memory_info().rss, self._process.cpu_percent()
        if waited < LONG_SECONDS:
            self.device, self._own, self._held = gpu.device(), gpu.number(), gpu.memory()
        use = None if self._own is None else self._gpu_use(gpu.in_use(), self._own)
        return Vitals(rss, cpu, use, self._held)

    def _gpu_use(self, cuda: Any, own: int) -> float | None:
        """Return the GPU's use as torch has it from NVML, which needs nvidia-ml-py."""
        if not self._sees_gpu:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return float(cuda.utilization(own))
        except Exception:  # no NVML, no right to ask it, a card that does not tell: each its own
            self._sees_gpu = False
            return None
