"""Pickles objects that plain pickle or cloudpickle gets wrong.

Torch's optimizers and sparsifiers would lose attributes, tensors their gradients, classes their
slots and attributes, and exceptions their message; sentinels of dataclasses would be copied. Others
could not be pickled at all: modules with computed tensors (`weight_norm`, a sparsifier's masks),
pruned Keras models, tensors of new dtypes (float8, uint16), and a `NewType` of the notebook.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import pickle
import sys
import typing
from typing import Any

from nbdist.rank.values import keras_models, wrapped_functions
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.kinds import attribute

PATCHED = ("step", "_opt_called")
"""Attributes that a learning-rate scheduler sets in an optimizer (see `set_scheduler`)."""


NEW_TYPES: Any = (typing.NewType, *filter(None, [getattr(typing, "TypeAliasType", None)]))
MARKS = {
    id(getattr(dataclasses, name)): name
    for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
    if hasattr(dataclasses, name)
}
"""Sentinels that must stay unique: a subclass of a dataclass with a copy has other defaults."""

OF_EACH_CLASS = (
    "__slots__",
    "__dict__",
    "__weakref__",
    "__module__",
    "__doc__",
    "__abstractmethods__",
)
"""Attributes that Python gives each class."""
_PLAIN_STATE = getattr(object, "__getstate__", None)  # since Python 3.11


def reduce(obj: Any) -> Any:
    """Return how to rebuild an object; NotImplemented for most (as `reducer_override`).

    Raises
    ------
    pickle.PicklingError
        If the object holds only this rank's part of a state.
    """
    if id(obj) in MARKS:
        return MARKS[id(obj)]
    for reducer in (
        _of_error,
        _of_own_dict,
        _of_new_type,
        wrapped_functions.reduce,
        keras_models.reduce,
    ):
        reduced = reducer(obj)
        if reduced is not NotImplemented:
            return reduced
    torch = sys.modules.get("torch")
    if torch is None:
        return NotImplemented
    return _of_torch(torch, obj)


def _of_torch(torch: Any, obj: Any) -> Any:
    if isinstance(obj, torch.Tensor):
        return _of_new_dtype(obj) if _is_new(obj.dtype) else _with_gradient(obj)
    if isinstance(obj, torch.nn.Module):
        return _of_parametrized(obj)
    if is_a(obj, "torch.optim.lr_scheduler", "LRScheduler"):
        return _of_scheduler(obj)
    base = torch.optim.Optimizer if isinstance(obj, torch.optim.Optimizer) else _sparsifier(obj)
    return NotImplemented if base is None else _whole(obj, base)


def _of_error(obj: Any) -> Any:
    """Reduce an exception of the notebook to its state.

    Python would call its class with the arguments of its base class, which are often others.
    """
    kind: Any = type(obj)
    own = isinstance(obj, BaseException) and kind.__module__ == "__main__"
    if not own or kind.__reduce__ is not BaseException.__reduce__:
        return NotImplemented
    return _new, (kind,), {**vars(obj), "args": obj.args}


def _of_own_dict(obj: Any) -> Any:
    """Reduce a dict that is its own `__dict__`, of which pickle would make two."""
    kind: Any = type(obj)
    plain = isinstance(obj, dict) and kind.__reduce_ex__ is object.__reduce_ex__
    if not plain or attribute(obj, "__dict__") is not obj:
        return NotImplemented
    items: Any = iter(dict.items(obj))
    return copyreg.__newobj__, (kind,), True, None, items, be_own_dict  # type: ignore[attr-defined]


def be_own_dict(obj: Any, _: bool) -> None:
    """Let the items of a dict be its attributes."""
    object.__setattr__(obj, "__dict__", obj)


def whole_class(kind: type, reduced: Any) -> Any:
    """Return cloudpickle's reduction of a class, with its slots and all of its own attributes.

    cloudpickle sets `__slots__` after the class is created, when it has no effect, and leaves out
    what is the same in a base class, which may change there (`lr = Base.lr`).
    """
    own, (_, arguments, (attributes, _), *_) = vars(kind), reduced
    if "__slots__" in own and not issubclass(kind, tuple):
        arguments[3]["__slots__"] = own["__slots__"]
    for base in kind.__bases__:
        for name, inherited in vars(base).items():
            if name in own and own[name] is inherited and name not in OF_EACH_CLASS:
                attributes.setdefault(name, inherited)
    return reduced


def _with_gradient(tensor: Any) -> Any:
    """Reduce a tensor of the user's with its gradient, which torch leaves out."""
    if not tensor.is_leaf or tensor.grad is None:
        return NotImplemented
    reduced = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if len(reduced) > 2:  # noqa: PLR2004 - a subclass with a state of its own
        return NotImplemented
    # Torch's own setter, which a script has, too.
    put: Any = type(tensor).grad.__set__
    if tensor.grad.dtype != tensor.dtype:
        put = set_gradient
    return *reduced, tensor.grad, None, None, put


def set_gradient(tensor: Any, gradient: Any) -> None:
    """Give a tensor a gradient of another type."""
    tensor.grad_dtype = gradient.dtype
    tensor.grad = gradient


def _of_new_type(obj: Any) -> Any:
    """Reduce a `NewType`, or an alias that a `type` statement makes, which pickle looks up by name.

    An alias with type parameters is left to pickle.
    """
    if not isinstance(obj, NEW_TYPES) or obj.__module__ != "__main__":
        return NotImplemented
    if isinstance(obj, typing.NewType):
        return typing.NewType, (obj.__name__, obj.__supertype__), dict(vars(obj))
    return NotImplemented if obj.__type_params__ else (type(obj), (obj.__name__, obj.__value__))


def _whole(obj: Any, base: Any) -> Any:
    """Reduce an object to all its attributes: its library leaves out those added later.

    An object with a reducer of its own keeps it.
    """
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if zero is not None and isinstance(obj, zero.ZeroRedundancyOptimizer):
        raise pickle.PicklingError("it holds only this rank's part of the state")
    kind: Any = type(obj)
    if kind.__getstate__ is not base.__getstate__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return NotImplemented
    added = {name: value for name, value in vars(obj).items() if name not in PATCHED}
    return copyreg.__newobj__, (kind,), {**added, **obj.__getstate__()}  # type: ignore[attr-defined]


def _of_scheduler(scheduler: Any) -> Any:
    """Reduce a learning-rate scheduler, which looks whether its optimizer has made a step."""
    reduced = scheduler.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    usual = reduced[0] is copyreg.__newobj__ and type(reduced[2]) is dict  # type: ignore[attr-defined]
    own = hasattr(type(scheduler), "__setstate__") or not hasattr(scheduler, "optimizer")
    return (*reduced[:3], None, None, set_scheduler) if usual and not own else NotImplemented


def set_scheduler(scheduler: Any, state: dict[str, Any]) -> None:
    """Restore a scheduler, and let its optimizer tell of steps, as torch's constructor does.

    Else torch warns at the first step of the scheduler.
    """
    vars(scheduler).update(state)
    optimizer = scheduler.optimizer
    step = optimizer.step
    if not hasattr(step, "_wrapped_by_lr_sched"):

        def counted(*args: Any, **named: Any) -> Any:
            optimizer._opt_called = True
            return step(*args, **named)

        marked: Any = counted
        marked._wrapped_by_lr_sched = True
        optimizer.step = marked


@functools.cache
def _is_new(dtype: Any) -> bool:
    """Return whether torch reduces tensors of a dtype to a storage without a type (float8, uint16).

    It can then rebuild only those that `torch.save` has written.
    """
    torch = sys.modules["torch"]
    try:
        _, arguments = torch.empty(0, dtype=dtype).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except RuntimeError:  # a quantized one
        return False
    return isinstance(arguments[0], torch.UntypedStorage)


def _of_new_dtype(tensor: Any) -> Any:
    """Reduce a tensor as `torch.save` does, which gives each storage a type."""
    torch = sys.modules["torch"]

    def typed(part: Any) -> Any:
        if isinstance(part, torch.UntypedStorage):
            return torch.storage.TypedStorage(wrap_storage=part, dtype=torch.uint8, _internal=True)
        return tuple(map(typed, part)) if type(part) is tuple else part

    make, arguments, *state = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return make, typed(arguments), *state


def _sparsifier(obj: Any) -> Any:
    """Return the base class of a sparsifier of torch or torchao; None for other objects."""
    for base in type(obj).__mro__:
        if base.__name__ == "BaseSparsifier" and base.__module__.startswith("torch"):
            return base
    return None


def _of_parametrized(module: Any) -> Any:
    """Reduce a module with computed tensors (parametrizations).

    Torch gives it a dynamic class, which refuses to be pickled. It is rebuilt from its original
    class, its state and the names of these tensors.
    """
    from torch.nn.utils import parametrize

    if not parametrize.is_parametrized(module):
        return NotImplemented
    kind: Any = parametrize.type_before_parametrizations(module)
    own = getattr(kind, "__getstate__", None)
    state = dict(vars(module) if own in (None, _PLAIN_STATE) else own(module))
    return _new, (kind,), state, None, None, set_parametrized


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


def set_parametrized(module: Any, state: dict[str, Any]) -> None:
    """Restore a module's state, and give it a class that computes its tensors."""
    import torch
    from torch.nn.utils import parametrize

    module.__setstate__(state)
    computed = module.parametrizations
    del module.parametrizations
    for name in computed:
        # Only to make torch create the class; the real parametrization is set below.
        module.register_parameter(name, torch.nn.Parameter(torch.empty(0), requires_grad=False))
        parametrize.register_parametrization(module, name, torch.nn.Identity(), unsafe=True)
    module.parametrizations = computed


MAKERS = (
    _new, be_own_dict, set_gradient, set_parametrized, set_scheduler, keras_models.within_scope,
    *wrapped_functions.MAKERS,
)  # fmt: skip
"""The functions of this module that such a pickle refers to."""
