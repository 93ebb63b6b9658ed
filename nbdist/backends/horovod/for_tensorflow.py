"""The ``horovod`` backend with TensorFlow: devices, Keras optimizers, comparing and copying."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import tempfile
import weakref
from multiprocessing import process
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.backends.horovod.for_torch import refuse_to_travel
from nbdist.backends.models import keras_names
from nbdist.errors import UsageError
from nbdist.machine.amounts import counted
from nbdist.wire.group_reports import Digest, Outline

if TYPE_CHECKING:
    from collections.abc import Collection

THREADS = "TF_NUM_INTRAOP_THREADS"
"""Environment variable of TensorFlow's own, which takes precedence."""


class TensorFlow:
    """TensorFlow's part of the ``horovod`` backend; see `engine_ranks.Framework`."""

    def __init__(self) -> None:
        self.hvd: Any = importlib.import_module("horovod.tensorflow")
        self._tf: Any = importlib.import_module("tensorflow")
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def device(self, local_rank: int) -> str:
        """Return the rank's device, the only GPU that TensorFlow sees from now on.

        It must be called before TensorFlow is used, which later refuses the setting.
        """
        config = self._tf.config
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if THREADS not in os.environ and threads.isdecimal():
            config.threading.set_intra_op_parallelism_threads(int(threads))
        gpus = config.list_physical_devices("GPU")
        if not gpus:
            return "/CPU:0"
        if local_rank >= len(gpus):
            there = counted(len(gpus), "GPU")
            raise UsageError(f"local rank {local_rank} has no GPU: this host has {there}")
        own = gpus[local_rank]
        config.set_visible_devices(own, "GPU")
        # By default TensorFlow reserves all memory of the GPU at once.
        config.experimental.set_memory_growth(own, True)
        return "/GPU:0"

    def install(self) -> None:
        """Register new optimizers; put TensorFlow's temporary files into the cluster's folder."""
        # TensorFlow writes the code it generates into files. A killed process cannot remove them,
        # but the supervisor removes this folder.
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
            kind: Any = type(optimizer)  # a class that Horovod makes for each optimizer
            kind.__reduce_ex__ = refuse_to_travel
            if vars(optimizer).get("_agg_helper") is not None:
                self._optimizers.add(optimizer)
            return optimizer

        # All of Horovod's functions that make a Keras optimizer call it.
        keras.create_distributed_optimizer = watched

    def _broadcast_by_place(self) -> None:
        """Let variables be broadcast by their places in the list instead of by their names.

        Horovod matches variables by name. Names differ between a replaced rank and other ranks,
        even for the same model: a function that TensorFlow has traced keeps its old names.
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

    def begin(self, namespace: dict[str, object], job: str) -> None:
        """Do nothing: steps in TensorFlow's graphs are not counted."""

    def settle(self, *, first: bool) -> None:
        """Reset optimizers after a step that may have been interrupted; every rank must call it.

        Between two steps only aggregated gradients are Horovod's state, and ranks may have
        aggregated different numbers of them.
        """
        for optimizer in list(self._optimizers):
            optimizer._agg_helper._clear_vars()  # noqa: SLF001  # Horovod's last release
        if not first:
            keras_names.agree(self.hvd.rank(), self.hvd.size())

    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str] = (), *, every: bool = True
    ) -> dict[str, Digest]:
        """Return digests of models (with their optimizers), optimizers and variables.

        A model's digest covers trainable variables only: batch statistics differ between ranks.
        """
        del jobs, every  # steps in TensorFlow's graphs are not counted
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

    def outline(self, thing: Any) -> Outline:
        """Return what must be the same on all ranks to copy this object."""
        self._build_optimizer(thing)
        variables = self._variables(thing, trainable=False)
        kind = type(thing).__name__
        if variables is None:
            return Outline(
                {"": f"of type {kind}"}, f"a {kind} is not a model, optimizer or variable"
            )
        if isinstance(thing, self._tf.Variable):
            return Outline({"": _described(thing)})
        # By place: the names of the same variables differ between ranks.
        parts = {f"variable {n}": _described(each) for n, each in enumerate(variables)}
        return Outline({"": f"of type {kind}"} | parts)

    def sync(self, thing: Any, source: int) -> None:
        """Copy an object, whose outline is the same on all ranks, from rank `source`."""
        self.hvd.broadcast_variables(self._variables(thing, trainable=False), root_rank=source)

    def _build_optimizer(self, model: Any) -> None:
        """Create the state of a model's optimizer, which does not exist before the first step."""
        build = getattr(getattr(model, "optimizer", None), "build", None)
        if build is not None and isinstance(model, self._tf.Module):
            build(model.trainable_variables)

    def _variables(self, value: Any, *, trainable: bool = True) -> list[Any] | None:
        """Return the variables of a model, an optimizer or a variable; None for other values."""
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


def _described(variable: Any) -> str:
    return f"{variable.dtype.name} {tuple(variable.shape)}"


def _digest(variables: list[Any]) -> Digest:
    hasher = hashlib.blake2b(digest_size=8)
    outline = ""
    for variable in variables:
        value = variable.numpy()
        outline += f"{value.shape}{value.dtype}"
        hasher.update(value.tobytes())
    # Nothing counts its changes.
    return Digest(outline, hasher.hexdigest(), together=True, changed=-1)
