"""Measures how long torch lets a rank wait for others: in DDP and in ``Work.wait``.

For its own log, DDP measures how long its communication went on after the gradients were computed.
On CPUs this takes 10 us, so we make DDP measure often. On GPUs it waits for the step before, so we
keep torch's own pace: the first ten steps, then every hundredth step, which stands for the steps
after it.
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
"""The shortest time between two measured steps, since measuring and reading take 20 us. Steps
between them count like the next measured step."""
TORCHS_OWN = 100
"""DDP measures one step in this many by default."""
NANO = 1e-9
NEVER = float("inf")


class _Model:
    """The measured waits of one DDP model. Main thread."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        self._on_cpu = model.device_type == "cpu"
        self._measured = False
        """Whether the step that has ended was measured because we asked for it."""
        self._steps = 0
        """On CPUs DDP's number of the last step accounted for; on GPUs the steps not accounted
        for."""
        self._begun_at = 0.0
        """When the last measured step began."""

    @property
    def look_at(self) -> float:
        """When this model is to be looked at next."""
        every_step = self._measured or not self._on_cpu
        return 0.0 if every_step else self._begun_at + MEASURE_SECONDS

    def look(self, logger: Any, now: float) -> None:
        """Account for the step that has ended; have the next step measured if it is time."""
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
        else:  # the log is about an older step
            steps, self._steps = self._steps, 0
        if "backward_comm_time" in told:  # missing before the first backward
            late = told["backward_comm_time"] - told["backward_compute_comm_overlap_time"]
            wait_time.add(max(0, late) * NANO * steps)


_models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()
"""The models, by their C++ loggers."""
_look_at = 0.0
"""When the next model is to be looked at."""


def time_waits() -> None:
    """Have waits for other ranks added up in `wait_time`; once in each process."""
    logger_type: Any = dist.Logger  # type: ignore[attr-defined]
    original = logger_type.set_runtime_stats_and_log
    if hasattr(original, "__wrapped__"):
        return
    hooks.watch_ddp(_begin)
    dist.Work.wait = wait_time.timed(dist.Work.wait)  # type: ignore[method-assign]
    model_type: Any = DistributedDataParallel
    model_type._sync_buffers = wait_time.timed(model_type._sync_buffers)
    clock = time.perf_counter

    # Called at the start of each forward that is followed by a backward with communication.
    def set_runtime_stats_and_log(self: Any) -> None:
        original(self)
        if clock() >= _look_at:
            try:
                _look(self, clock())
            except Exception:  # torch's log has changed: waits stay unknown, no step fails
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
    """Measure a model that was constructed, or that has got a new reducer."""
    global _look_at  # see _look
    if _look_at == NEVER:
        return
    _models[model.logger] = _Model(model)
    _look_at = 0.0
