"""What this process takes of its machine. The agent's thread."""

from __future__ import annotations

import warnings
from typing import Any

import psutil

from nbdist.rank import gpu
from nbdist.wire.doing import Vitals


class Meter:
    """Reads this process's use of CPU, memory and GPU; what cannot be read is None."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # it is told since the call before
        self._sees_gpu = True

    def read(self) -> Vitals:
        """Return what it takes now, the CPU since the last call."""
        with self._process.oneshot():
            rss, cpu = self._process.memory_info().rss, self._process.cpu_percent()
        own, cuda = gpu.number(), gpu.in_use()
        if own is None:
            return Vitals(rss, cpu)
        return Vitals(rss, cpu, self._gpu_use(cuda, own), int(cuda.memory_reserved(own)))

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
