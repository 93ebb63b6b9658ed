"""Where torch makes a rank wait for others: in DDP's backward and buffers, and in ``Work.wait``.

DDP itself measures, for its own log, how long its communication went on after the gradients were
computed. On CPUs that takes 10 us, so it is asked to do it again and again. On GPUs it waits for
the step before, so it stays at torch's own pace: the first ten steps, then every hundredth, which
stands for those after it.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nbdist.backends import waits
from nbdist.backends.torch_private import hooks

MEASURE_SECONDS = 0.02
"""No more often a step is measured and the log read, 20 us together; others count as the next."""
TORCHS_OWN = 100
"""Every so many steps DDP measures by itself."""
NANO = 1e-9


class _Model:
    """What is known of one DDP model's waits. Main thread."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        self._on_cpu = model.device_type == "cpu"
        self._measured = False
        """Whether the step that is over was measured because we asked for it."""
        self._steps = 0
        """Since the log was read."""
        self._begun_at = 0.0
        """When the last step began that is measured."""

    def step(self, logger: Any) -> None:
        """Take in a step that is over, and have the one that begins measured if it is time."""
        self._steps += 1
        now = time.perf_counter()
        due = now - self._begun_at >= MEASURE_SECONDS
        if self._measured or (due and not self._on_cpu):
            self._read(logger)
        if due:
            self._begun_at = now
        if self._on_cpu and due != self._measured:
            model: Any = self._model()
            model.reducer._set_ddp_runtime_logging_sample_rate(1 if due else TORCHS_OWN)
            self._measured = due

    def _read(self, logger: Any) -> None:
        steps, self._steps = self._steps, 0
        told = logger._get_ddp_logging_data().ints_map
        if "backward_comm_time" in told:  # not before the first backward
            late = told["backward_comm_time"] - told["backward_compute_comm_overlap_time"]
            waits.add(max(0, late) * NANO * steps)


_models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()
"""By the logger in C++ of each."""


def time_waits() -> None:
    """Have waits for other ranks added up in `waits`; once in each process."""
    if hasattr(dist.Logger.set_runtime_stats_and_log, "__wrapped__"):  # type: ignore[attr-defined]
        return
    hooks.watch_ddp(_begin)
    dist.Work.wait = waits.timed(dist.Work.wait)  # type: ignore[method-assign]
    model_type: Any = DistributedDataParallel
    model_type._sync_buffers = waits.timed(model_type._sync_buffers)
    logger_type: Any = dist.Logger  # type: ignore[attr-defined]
    original = logger_type.set_runtime_stats_and_log

    # Called at the start of each forward that a backward with communication will follow.
    def set_runtime_stats_and_log(self: Any) -> None:
        original(self)
        model = _models.get(self)
        if model is not None:
            model.step(self)

    set_runtime_stats_and_log.__wrapped__ = original  # type: ignore[attr-defined]
    logger_type.set_runtime_stats_and_log = set_runtime_stats_and_log


def _begin(model: Any) -> None:
    """Time a model that is made, or has got a new reducer."""
    _models[model.logger] = _Model(model)
