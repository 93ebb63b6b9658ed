"""`TransformersCallback`: curves and bars for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import math
from typing import Any

from transformers import TrainerCallback

from nbdist.loops.numbers import log_numbers
from nbdist.rank.metrics.batch_sizes import UNKNOWN, at
from nbdist.rank.metrics.progress import Loop, open_loop

SAID_ONCE = ("epoch", "total_flos", "train_loss")
"""Values that are logged once, at the end, and make no curve; so are times and rates."""
RATES = ("_runtime", "_per_second")
SPLITS = ("eval", "test")


class TransformersCallback(TrainerCallback):
    """Show what a Trainer logs as curves, and the progress of training and evaluation as bars.

    ``loss`` becomes ``train/loss``, and ``eval_loss`` becomes ``eval/loss``, as the Trainer's own
    reports call them. The values are those of all ranks together, so only rank 0 logs them; every
    rank has its bar. The Trainer's own bar and table stay; ``disable_tqdm`` removes them.

    Examples
    --------
    >>> Trainer(..., callbacks=[nbdist.loops.TransformersCallback()])  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._train: Loop | None = None
        self._evaluate: Loop | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the bar of the training."""
        del args, control
        self._end()
        self._train = open_loop("train", state.max_steps, state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure each epoch, because the bar covers all epochs."""
        del args, control
        if self._train is not None and _whole(state):
            self._train.begin_pass()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the end of an epoch."""
        del args, control
        if self._train is not None:
            self._train.end_pass(whole=_whole(state))

    def on_step_end(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Count a step of the optimizer, and its samples."""
        del control
        if self._train is not None:
            each, step = args.gradient_accumulation_steps, state.global_step
            self._train.count(step, _samples(train_dataloader, step, each))

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        """Count a batch of an evaluation or a prediction."""
        del args, state, control
        if self._evaluate is None:
            total = len(eval_dataloader) if hasattr(eval_dataloader, "__len__") else None
            self._evaluate = open_loop("evaluate", total)
        self._evaluate.count(self._evaluate.done + 1)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar of the evaluation."""
        del args, state, control
        if self._evaluate is not None:
            self._evaluate.end()
            self._evaluate = None

    def on_predict(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> None:
        """Close the bar of the prediction."""
        del metrics
        self.on_evaluate(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bars."""
        del args, state, control
        self._end()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Log what the Trainer logs."""
        del args, control
        if state.is_world_process_zero:
            kept = {
                _name(name): value
                for name, value in (logs or {}).items()
                if name not in SAID_ONCE and not name.endswith(RATES)
            }
            log_numbers(kept, state.global_step)

    def _end(self) -> None:
        """Close all open bars, also those of an interrupted training."""
        for loop in (self._evaluate, self._train):
            if loop is not None:
                loop.end()
        self._train = self._evaluate = None


def _samples(loader: Any, step: int, each: int) -> float:
    """Return the samples in a step of the optimizer, `each` of which takes this many batches."""
    try:
        batches = len(loader)
    except TypeError:
        return UNKNOWN
    first = (step - 1) % max(1, math.ceil(batches / each)) * each
    return sum(at(loader, place) for place in range(first, min(first + each, batches)))


def _whole(state: Any) -> bool:
    """Whether the training is between two epochs; it may begin or end within an epoch."""
    return float(state.epoch or 0).is_integer()


def _name(name: str) -> str:
    split, _, rest = name.partition("_")
    return f"{split}/{rest}" if split in SPLITS and rest else f"train/{name}"
