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

from nbdist.backends.groups import wait_time
from nbdist.backends.torch_private import hooks

MEASURE_SECONDS = 0.02
"""No more often a step is measured and the log read, 20 us together; others count as the next."""
TORCHS_OWN = 100
"""Every so many steps DDP measures by itself."""
NANO = 1e-9
NEVER = float("inf")


class _Model:
    """What is known of one DDP model's waits. Main thread."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        self._on_cpu = model.device_type == "cpu"
        self._measured = False
        """Whether the step that is over was measured because we asked for it."""
        self._steps = 0
        """That are accounted for, by DDP's own count; on GPUs those that are not."""
        self._begun_at = 0.0
        """When the last step began that is measured."""

    @property
    def look_at(self) -> float:
        """When it is to be looked at next."""
        every_step = self._measured or not self._on_cpu
        return 0.0 if every_step else self._begun_at + MEASURE_SECONDS

    def look(self, logger: Any, now: float) -> None:
        """Take in the step that is over, and have the one that begins measured if it is time."""
        due = now - self._begun_at >= MEASURE_SECONDS
        if not self._on_cpu:
            self._steps += 1
        if self._measured or (due and not self._on_cpu):
            self._read(logger)
        if due:
            self._begun_at = now
        if self._on_cpu and due != self._measured:
            model: Any = self._model()
            model.reducer._set_ddp_runtime_logging_sample_rate(1 if due else TORCHS_OWN)
            self._measured = due

    def _read(self, logger: Any) -> None:
        told = logger._get_ddp_logging_data().ints_map
        if self._on_cpu:
            before, self._steps = self._steps, told.get("iteration", 0)
            steps = self._steps - before
        else:  # the log is of a step long ago
            steps, self._steps = self._steps, 0
        if "backward_comm_time" in told:  # not before the first backward
            late = told["backward_comm_time"] - told["backward_compute_comm_overlap_time"]
            wait_time.add(max(0, late) * NANO * steps)


_models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()
"""By the logger in C++ of each."""
_look_at = 0.0
"""When one of them is to be looked at next."""


def time_waits() -> None:
    """Have waits for other ranks added up in `waits`; once in each process."""
    logger_type: Any = dist.Logger  # type: ignore[attr-defined]
    original = logger_type.set_runtime_stats_and_log
    if hasattr(original, "__wrapped__"):
        return
    hooks.watch_ddp(_begin)
    dist.Work.wait = wait_time.timed(dist.Work.wait)  # type: ignore[method-assign]
    model_type: Any = DistributedDataParallel
    model_type._sync_buffers = wait_time.timed(model_type._sync_buffers)
    clock = time.perf_counter

    # Called at the start of each forward that a backward with communication will follow.
    def set_runtime_stats_and_log(self: Any) -> None:
        original(self)
        if clock() >= _look_at:
            try:
                _look(self, clock())
            except Exception:  # torch's log is another one now: waits stay unknown, no step fails
                _give_up()

    set_runtime_stats_and_log.__wrapped__ = original  # type: ignore[attr-defined]
    logger_type.set_runtime_stats_and_log = set_runtime_stats_and_log


def _give_up() -> None:
    global _look_at  # see _look
    _look_at = NEVER


def _look(logger: Any, now: float) -> None:
    global _look_at  # a process has one main thread
    model = _models.get(logger)
    if model is not None and now >= model.look_at:
        model.look(logger, now)
    _look_at = min((each.look_at for each in _models.values()), default=0.0)


def _begin(model: Any) -> None:
    """Time a model that is made, or has got a new reducer."""
    global _look_at  # see _look
    if _look_at == NEVER:
        return
    _models[model.logger] = _Model(model)
    _look_at = 0.0
