"""Horovod's part for TensorFlow: the rank's device, Keras' optimizers, models across ranks."""

from __future__ import annotations

import hashlib
import importlib
import os
import weakref
from typing import Any

from nbdist.backends.horovod_torch import refuse_to_travel
from nbdist.errors import UsageError

THREADS = "TF_NUM_INTRAOP_THREADS"
"""Environment name: TensorFlow's own, which goes first."""


class TensorFlow:
    """What the ``horovod`` backend asks of its framework; see `nbdist.backends.horovod`."""

    def __init__(self) -> None:
        self.hvd: Any = importlib.import_module("horovod.tensorflow")
        self._tf: Any = importlib.import_module("tensorflow")
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def device(self, local_rank: int) -> str:
        """Return the rank's device, the only one of its kind that TensorFlow sees from now on.

        Nothing has used TensorFlow yet: later it would refuse.
        """
        config = self._tf.config
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if THREADS not in os.environ and threads.isdecimal():
            config.threading.set_intra_op_parallelism_threads(int(threads))
        gpus = config.list_physical_devices("GPU")
        if not gpus:
            return "/CPU:0"
        if local_rank >= len(gpus):
            raise UsageError(f"rank {local_rank} of this host has no GPU: there are {len(gpus)}")
        own = gpus[local_rank]
        config.set_visible_devices(own, "GPU")
        # It would take all memory of the GPU at once.
        config.experimental.set_memory_growth(own, True)
        return "/GPU:0"

    def install(self) -> None:
        """Watch the optimizers that are made."""
        keras: Any = importlib.import_module("horovod._keras")
        make = keras.create_distributed_optimizer

        def watched(*args: Any, **options: Any) -> Any:
            optimizer = make(*args, **options)
            kind: Any = type(optimizer)  # one that Horovod has made for it alone
            kind.__reduce_ex__ = refuse_to_travel
            if vars(optimizer).get("_agg_helper") is not None:
                self._optimizers.add(optimizer)
            return optimizer

        # All of Horovod's ways to an optimizer of Keras' call it.
        keras.create_distributed_optimizer = watched

    def settle(self) -> None:
        """Drop gradients that were collected for a step: ranks may have collected unequally many.

        All else that Horovod puts into a graph or an optimizer holds nothing between two steps.
        """
        for optimizer in list(self._optimizers):
            optimizer._agg_helper._clear_vars()  # noqa: SLF001  # Horovod's last release

    def checksums(self, namespace: dict[str, object]) -> dict[str, str]:
        """Return a digest of each model's trainable variables and each optimizer's state."""
        found = {name: self._variables(value) for name, value in list(namespace.items())}
        return {name: _digest(held) for name, held in found.items() if held}

    def sync(self, model: Any, source: int) -> None:
        """Make a model, an optimizer's state or a variable what it is on rank `source`."""
        variables = self._variables(model, trainable=False)
        if variables is None:
            raise UsageError(f"a {type(model).__name__} is no model, optimizer or variable")
        # Rank by rank the same number: an optimizer has its variables since its first step.
        counts = self.hvd.allgather_object(len(variables), name="nbdist-sync")
        if len(set(counts)) > 1:
            raise UsageError(
                f"the {type(model).__name__} has {counts} variables on the ranks: "
                "it must be built on all of them first"
            )
        self.hvd.broadcast_variables(variables, root_rank=source)

    def _variables(self, value: Any, *, trainable: bool = True) -> list[Any] | None:
        """Return the variables of a model or optimizer, None if the value is neither."""
        optimizers = self._tf.keras.optimizers
        if isinstance(value, self._tf.Variable):
            return [value]
        if isinstance(value, (optimizers.Optimizer, optimizers.legacy.Optimizer)):
            held = value.variables
            return list(held() if callable(held) else held)
        if isinstance(value, self._tf.Module):
            # Statistics of each rank's own batches are no sign that ranks have parted.
            return list(value.trainable_variables if trainable else value.variables)
        return None


def _digest(variables: list[Any]) -> str:
    hasher = hashlib.blake2b(digest_size=8)
    for variable in variables:
        value = variable.numpy()
        hasher.update(f"{value.shape}{value.dtype}".encode())
        hasher.update(value.tobytes())
    return hasher.hexdigest()
