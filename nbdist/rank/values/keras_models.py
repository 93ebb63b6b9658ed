"""TensorFlow's tensors and Keras models: describe, compare and pickle them.

TensorFlow is never imported here: a process with such a value has imported it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from nbdist.machine import amounts
from nbdist.rank.values.user_errors import CannotTravel

LIVES_THERE = "its optimizer is a Horovod optimizer, which cannot be copied from its rank"
REMEDY = "bring the model before it is compiled, or its `get_weights()`"
_HOROVOD = "horovod._keras"
_OPTIMIZING = "tensorflow_model_optimization"


def tell_tensor(value: Any) -> dict[str, Any]:
    """Describe a tensor or variable. Any thread."""
    shape = tuple(value.shape)
    known = all(size is not None for size in shape)
    comma = "," if len(shape) == 1 else ""
    return {
        "shape": f"({', '.join(map(str, shape))}{comma})",
        "dtype": value.dtype.name,
        "device": short_device(value.device),
        "size": math.prod(shape) * value.dtype.size if known and value.dtype.size else None,
    }


def tell_module(value: Any) -> dict[str, Any]:
    """Describe a model, a layer or another module. Main thread: it may be the user's class."""
    told = [tell_tensor(variable) for variable in value.variables]
    count = sum(math.prod(variable.shape) for variable in value.trainable_variables)
    return {
        "shape": amounts.counted(count, "parameter"),
        "dtype": ", ".join(dict.fromkeys(one["dtype"] for one in told)),
        "device": ", ".join(dict.fromkeys(one["device"] for one in told)),
        "size": sum(one["size"] or 0 for one in told),
    }


def short_device(name: str) -> str:
    """Return ``/GPU:0`` for TensorFlow's long name of a device, as `device` is on a rank."""
    _, found, kind = name.rpartition("device:")
    return f"/{kind}" if found else name


def tensors_of(value: Any) -> list[Any] | None:
    """Return the tensors in a value that must be equal on all ranks; None if not TensorFlow's."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "Module"):  # not imported, or being imported now
        return None
    if isinstance(value, (tf.Tensor, tf.Variable)):
        return [value]
    return list(value.trainable_variables) if isinstance(value, tf.Module) else None


def on_cpu(value: Any) -> bool:
    """Whether a tensor or variable can be read without waiting for a GPU."""
    return "CPU:" in value.device


def refuses(kind: type, *, to_notebook: bool) -> Any:
    """Return a reducer for models of this class; None if this is not a Keras model.

    A model with Horovod's optimizer arrives in the notebook with the optimizer inside it. On
    another rank it is refused: there the inner optimizer would silently train alone.
    """
    if _HOROVOD not in sys.modules or not _is_model(kind):
        return None
    return _to_notebook if to_notebook else _elsewhere


def trained_by_horovod(value: Any) -> bool:
    """Whether a value is a Keras model that was compiled with Horovod's optimizer."""
    loaded = _HOROVOD in sys.modules and _is_model(type(value))
    return loaded and type(getattr(value, "optimizer", None)).__module__ == _HOROVOD


def reduce(value: Any) -> Any:
    """Reduce a model with layers that tensorflow_model_optimization prunes; else NotImplemented.

    Keras finds the classes of these layers only within a scope of that library.
    """
    if _OPTIMIZING not in sys.modules or not _is_model(type(value)):
        return NotImplemented
    if not any(type(part).__name__ == "PruneLowMagnitude" for part in value.submodules):
        return NotImplemented
    make, arguments, *others = value.__reduce__()
    return within_scope, (make, arguments), *others


def within_scope(make: Any, arguments: tuple[Any, ...]) -> Any:
    """Rebuild a model with pruned layers, within the library's scope."""
    from importlib import import_module  # a script has this function without its module

    optimizing: Any = import_module("tensorflow_model_optimization")
    with optimizing.sparsity.keras.prune_scope():
        return make(*arguments)


def _is_model(kind: type) -> bool:
    return any(
        base.__name__ == "Model" and base.__module__.startswith("keras.") for base in kind.__mro__
    )


def _elsewhere(model: Any) -> Any:
    if trained_by_horovod(model):
        raise CannotTravel(f"{LIVES_THERE}; {REMEDY}")
    return NotImplemented


def _to_notebook(model: Any) -> Any:
    if not trained_by_horovod(model):
        return NotImplemented
    # Keras finds a class by module and name; Horovod's class has the name of the class inside it.
    kind: Any = type(model.optimizer)
    kind.__module__ = kind.__mro__[1].__module__
    try:
        reduced = reduce(model)
        return model.__reduce__() if reduced is NotImplemented else reduced
    finally:
        kind.__module__ = _HOROVOD
