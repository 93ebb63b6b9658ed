"""`KerasCallback`: Keras' own training loop."""

from __future__ import annotations

from typing import Any

from keras.callbacks import Callback

from nbdist.loops.numbers import log_numbers
from nbdist.rank.metrics.progress import Loop, open_loop

VALIDATION = "val_"


class KerasCallback(Callback):
    """Show what ``fit`` logs as curves, and how far it is as bars.

    What is logged after each batch is Keras' mean over the epoch so far: ``loss`` is
    ``train/loss``, and after each epoch ``val_loss`` is ``val/loss``. Steps are batches, counted
    through all epochs, and on when the same callback is given to ``fit`` again. Every rank logs its
    own values.

    Examples
    --------
    >>> model.fit(x, y, epochs=3, callbacks=[nbdist.loops.KerasCallback()])  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self._step = 0
        """Batches so far."""
        self._before = 0
        """Those of earlier epochs."""
        self._epochs: Loop | None = None
        self._batches: Loop | None = None
        self._test: Loop | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the bar of the epochs."""
        del logs
        self._end()  # a training that was broken off
        self._epochs = open_loop("epoch", self.params.get("epochs"))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Open the bar of an epoch."""
        del logs
        if self._epochs is not None and epoch and not self._epochs.done:
            self._epochs.goes_on_from(epoch)  # fit's initial_epoch
        self._before = self._step
        self._batches = open_loop("train", self.params.get("steps"))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a batch, or as many as Keras runs at once, and log what it has come to."""
        if self._batches is not None:
            self._batches.count(batch + 1)
        log_numbers(logs or {}, self._before + batch, "train/")
        self._step = self._before + batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """Open the bar of an evaluation; how long one within ``fit`` is, Keras does not tell."""
        del logs
        within = self._epochs is not None and not self._epochs.over
        self._test = open_loop("evaluate", None if within else self.params.get("steps"))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a batch of it."""
        del logs
        if self._test is not None:
            self._test.count(batch + 1)

    def on_test_end(self, logs: Any = None) -> None:
        """Close its bar."""
        del logs
        if self._test is not None:
            self._test.end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count an epoch, and log what it was validated with."""
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
