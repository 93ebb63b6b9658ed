"""Horovod's part for TensorFlow: the rank's device, Keras' optimizers, models across ranks."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import tempfile
import weakref
from multiprocessing import process
from types import SimpleNamespace
from typing import Any

import msgspec

from nbdist.backends.horovod.for_torch import refuse_to_travel
from nbdist.backends.models import keras_names
from nbdist.backends.models.variable_paths import at
from nbdist.errors import UsageError
from nbdist.wire.group_reports import Digest

THREADS = "TF_NUM_INTRAOP_THREADS"
"""Environment name: TensorFlow's own, which goes first."""


class TensorFlow:
    """What the ``horovod`` backend asks of its framework; see `engine_ranks`."""

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
        """Watch the optimizers that are made, and keep files of TensorFlow's with the cluster's."""
        # What it makes of functions it writes to files, which a process that is killed cannot
        # remove; the supervisor does.
        loader: Any = importlib.import_module("tensorflow.python.autograph.pyct.loader")
        inside: Any = vars(process.current_process())
        folder = inside["_config"].get("tempdir")
        make_file = functools.partial(tempfile.NamedTemporaryFile, dir=folder)
        loader.tempfile = SimpleNamespace(NamedTemporaryFile=make_file)
        self._broadcast_by_place()
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

    def _broadcast_by_place(self) -> None:
        """Let variables be broadcast by their places in the list, as Horovod matches them by name.

        Names differ between a rank that was replaced and others, even for one and the same model:
        a function that TensorFlow has traced before keeps the names of those times.
        """
        functions: Any = importlib.import_module("horovod.tensorflow.functions")
        by_name = functions._make_broadcast_group_fn  # noqa: SLF001  # Horovod's last release

        def by_place(variables: list[Any], root_rank: int, process_set: Any) -> None:
            for place, variable in enumerate(variables):
                name = f"nbdist_broadcast_{place}"
                options = {"root_rank": root_rank, "name": name, "process_set": process_set}
                variable.assign(self.hvd.broadcast(variable, **options))

        functions._make_broadcast_group_fn = lambda: (  # noqa: SLF001
            by_place if self._tf.executing_eagerly() else by_name()
        )

    def settle(self, *, first: bool) -> None:
        """Bring all to rest after a step that may have been broken off. All ranks at once.

        A graph or an optimizer holds nothing of Horovod's between two steps, but for gradients
        that are collected over several: ranks may have collected unequally many.
        """
        for optimizer in list(self._optimizers):
            optimizer._agg_helper._clear_vars()  # noqa: SLF001  # Horovod's last release
        if not first:
            keras_names.agree(self.hvd.rank(), self.hvd.size())

    def checksums(self, namespace: dict[str, object]) -> dict[str, Digest]:
        """Return digests of each model, with the optimizer it was compiled with, and the like.

        Of a model what is trained: statistics of each rank's own batches are no sign of anything.
        """
        found = {name: self._variables(value) for name, value in list(namespace.items())}
        told = {name: _digest(held) for name, held in found.items() if held}
        things = {id(namespace[name]): number for number, name in enumerate(told)}
        return {
            name: msgspec.structs.replace(digest, thing=things[id(namespace[name])])
            for name, digest in told.items()
        }

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        held = [each for value in list(namespace.values()) for each in self._variables(value) or []]
        return sum(each.dtype.size * each.shape.num_elements() for each in held)

    def sync(self, namespace: dict[str, object], path: str, source: int, group: str = "") -> None:
        """Make a model, an optimizer's state or a variable what it is on rank `source`."""
        del group  # all ranks share it
        model = at(namespace, path)
        self._build_optimizer(model)
        variables = self._variables(model, trainable=False)
        if variables is None:
            raise UsageError(f"a {type(model).__name__} is no model, optimizer or variable")
        counts = self.hvd.allgather_object(len(variables), name="nbdist.sync")
        if len(set(counts)) > 1:
            raise UsageError(
                f"the {type(model).__name__} has {' and '.join(map(str, counts))} variables on "
                "the ranks: it must be built on all of them first"
            )
        self.hvd.broadcast_variables(variables, root_rank=source)

    def _build_optimizer(self, model: Any) -> None:
        """Let a model's optimizer have its state; before the first step it has none."""
        build = getattr(getattr(model, "optimizer", None), "build", None)
        if build is not None and isinstance(model, self._tf.Module):
            build(model.trainable_variables)

    def _variables(self, value: Any, *, trainable: bool = True) -> list[Any] | None:
        """Return the variables of a model or optimizer, None if the value is neither."""
        optimizers = self._tf.keras.optimizers
        if isinstance(value, self._tf.Variable):
            return [value]
        if isinstance(value, (optimizers.Optimizer, optimizers.legacy.Optimizer)):
            held = value.variables
            return list(held() if callable(held) else held)
        if isinstance(value, self._tf.Module):
            own = list(value.trainable_variables if trainable else value.variables)
            return own + (self._variables(getattr(value, "optimizer", None)) or [])
        return None


def _digest(variables: list[Any]) -> Digest:
    hasher = hashlib.blake2b(digest_size=8)
    outline = ""
    for variable in variables:
        value = variable.numpy()
        outline += f"{value.shape}{value.dtype}"
        hasher.update(value.tobytes())
    return Digest(outline, hasher.hexdigest())
