"""`KerasCallback`: curves and bars for Keras' ``fit`` and ``evaluate``."""

from __future__ import annotations

from typing import Any

from keras.callbacks import Callback

from nbdist.loops.numbers import log_numbers
from nbdist.rank.metrics.progress import Loop, open_loop

VALIDATION = "val_"


class KerasCallback(Callback):
    """Show what ``fit`` logs as curves, and its progress as bars.

    After each batch Keras' mean over the epoch so far is logged: ``loss`` becomes ``train/loss``.
    After each epoch ``val_loss`` becomes ``val/loss``. Steps are batches, counted through all
    epochs, and further if ``fit`` is called again with the same callback. Every rank logs its own
    values.

    Examples
    --------
    >>> model.fit(x, y, epochs=3, callbacks=[nbdist.loops.KerasCallback()])  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self._step = 0
        """The number of batches so far."""
        self._before = 0
        """The number of batches in earlier epochs."""
        self._epochs: Loop | None = None
        self._batches: Loop | None = None
        self._test: Loop | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the bar of the epochs."""
        del logs
        self._end()  # a training that was interrupted
        self._epochs = open_loop("epoch", self.params.get("epochs"))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Open the bar of an epoch."""
        del logs
        if self._epochs is not None and epoch and not self._epochs.done:
            self._epochs.goes_on_from(epoch)  # fit's initial_epoch
        self._before = self._step
        self._batches = open_loop("train", self.params.get("steps"))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the batches that Keras has run, one or several, and log its values."""
        if self._batches is not None:
            self._batches.count(batch + 1)
        log_numbers(logs or {}, self._before + batch, "train/")
        self._step = self._before + batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """Open the bar of an evaluation; within ``fit``, Keras does not give its length."""
        del logs
        within = self._epochs is not None and not self._epochs.over
        self._test = open_loop("evaluate", None if within else self.params.get("steps"))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a batch of the evaluation."""
        del logs
        if self._test is not None:
            self._test.count(batch + 1)

    def on_test_end(self, logs: Any = None) -> None:
        """Close the bar of the evaluation."""
        del logs
        if self._test is not None:
            self._test.end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count an epoch, and log its validation metrics."""
        found = {
            name.removeprefix(VALIDATION): value
            for name, value in (logs or {}).items()
            if name.startswith(VALIDATION)
        }
        log_numbers(found, self._step - 1, "val/")
        if self._batches is not None and self._epochs is not None:
            self._batches.end()
            self._epochs.count(epoch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        """Close all bars."""
        del logs
        self._end()

    def _end(self) -> None:
        for loop in (self._test, self._batches, self._epochs):
            if loop is not None and not loop.over:
                loop.end()
