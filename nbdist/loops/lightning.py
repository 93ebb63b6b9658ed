"""`LightningLogger` and `LightningProgress`: curves and bars for Lightning's Trainer."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from typing import TYPE_CHECKING, Any

from nbdist.loops.numbers import log_numbers
from nbdist.rank.metrics.batch_sizes import UNKNOWN, at
from nbdist.rank.metrics.logger import job_name
from nbdist.rank.metrics.progress import Loop, open_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

# lightning and pytorch_lightning each have their own copy of these classes.
_OLD = "lightning" not in sys.modules and (
    "pytorch_lightning" in sys.modules or importlib.util.find_spec("lightning") is None
)
_NAME = "pytorch_lightning" if _OLD else "lightning.pytorch"
_Logger: Any = importlib.import_module(f"{_NAME}.loggers").Logger
_ProgressBar: Any = importlib.import_module(f"{_NAME}.callbacks").ProgressBar

TOTALS = {
    "sanity_check": "num_sanity_val_batches",
    "validate": "num_val_batches",
    "test": "num_test_batches",
    "predict": "num_predict_batches",
}
"""For each stage of a Trainer, its attribute with the number of batches."""


class LightningLogger(_Logger):
    """Show what a LightningModule logs as curves.

    Every rank logs its own values; values logged with ``sync_dist=True`` are equal on all ranks.

    Examples
    --------
    >>> logger = nbdist.loops.LightningLogger()  # doctest: +SKIP
    >>> lightning.Trainer(logger=logger, log_every_n_steps=1)  # doctest: +SKIP
    """

    @property
    def name(self) -> str:
        """The folder of this logger's checkpoints, below the Trainer's."""
        return "nbdist"

    @property
    def version(self) -> str:
        """The folder below it, one for each job."""
        return job_name()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log the numbers among `metrics`, except the epoch, which Lightning adds."""
        log_numbers({name: value for name, value in metrics.items() if name != "epoch"}, step)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Do nothing: the hyperparameters are in the notebook."""


class LightningProgress(_ProgressBar):
    """Show a Trainer's progress as bars below the cell, instead of Lightning's own bars.

    Examples
    --------
    >>> lightning.Trainer(callbacks=[nbdist.loops.LightningProgress()])  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self._epochs: Loop | None = None
        self._train: Loop | None = None
        self._evaluate: Loop | None = None

    def disable(self) -> None:
        """Do nothing: Lightning calls it on all ranks except 0, but here every rank counts."""

    def enable(self) -> None:
        """Do nothing, see `disable`."""

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Open the bar of the epochs."""
        total = trainer.max_epochs
        total = None if total in (None, -1) else total
        self._epochs = open_loop("epoch", total, trainer.current_epoch)

    def on_train_epoch_start(self, *_: Any) -> None:
        """Open the bar of an epoch."""
        self._train = open_loop("train", _finite(self.total_train_batches))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Count a batch."""
        del pl_module, outputs
        if self._train is not None:
            samples = _samples(trainer.train_dataloader, None, batch_idx, batch)
            self._train.count(batch_idx + 1, samples)

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Close the bar of an epoch, and count it."""
        if self._train is not None and self._epochs is not None:
            self._train.end()
            self._epochs.count(trainer.current_epoch + 1)

    def _on_start(self, trainer: Any, *_: Any) -> None:
        stage = str(trainer.state.stage.value)
        total = sum(getattr(trainer, TOTALS[stage]))
        self._evaluate = open_loop(stage.replace("_", " "), _finite(total))

    def _on_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int | None = None,
    ) -> None:  # fmt: skip
        del pl_module, outputs
        if self._evaluate is not None:
            samples = _samples(_evaluated(trainer), dataloader_idx, batch_idx, batch)
            self._evaluate.count(self._evaluate.done + 1, samples)

    def _on_end(self, *_: Any) -> None:
        if self._evaluate is not None:
            self._evaluate.end()

    on_validation_start = on_test_start = on_predict_start = _on_start
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _on_batch_end
    on_validation_end = on_test_end = on_predict_end = _on_end

    def on_train_end(self, *_: Any) -> None:
        """Close all bars."""
        for loop in (self._evaluate, self._train, self._epochs):
            if loop is not None:
                loop.end()

    on_exception = on_train_end


def _evaluated(trainer: Any) -> Any:
    """Return the loader, or several, of an evaluation."""
    match str(trainer.state.fn.value):
        case "validate":  # after a fit, trainer.val_dataloaders are still those of the fit
            found = getattr(trainer.validate_loop, "_combined_loader", None)
            return getattr(found, "iterables", None)
        case "test":
            return trainer.test_dataloaders
        case "predict":
            return trainer.predict_dataloaders
        case _:
            return trainer.val_dataloaders


def _samples(loaders: Any, which: int | None, place: int, batch: Any) -> float:
    """Return the samples in a batch of one loader; unknown if it is made from several."""
    if isinstance(loaders, dict):
        loaders = list(loaders.values())
    if not isinstance(loaders, (list, tuple)):
        return at(loaders, place, batch)
    if which is None and len(loaders) > 1:
        return UNKNOWN
    return at(loaders[which or 0], place, batch)


def _finite(total: float) -> int | None:
    return int(total) if math.isfinite(total) else None
