"""Pickles functions that a library has wrapped: `functools.singledispatch`, `torch.compile`, jit.

What a wrapper holds besides the function belongs to its process (weak references, caches,
compilers), so the receiver wraps the function again. A script does so without nbdist: the functions
that rebuild here (`MAKERS`) import what they need themselves.
"""

from __future__ import annotations

import functools
import io
import sys
import warnings
from types import FunctionType
from typing import Any

from nbdist.rank.values.user_errors import CannotTravel

DISPATCHES = functools.singledispatch(lambda _: None).__code__  # type: ignore[attr-defined]
"""The code of all functions that `singledispatch` makes."""
RECOMPILE = (
    "torch.compile has made it with settings that nbdist cannot read: bring the function or model "
    "that it was made of, and compile that in the cell"
)


def reduce(obj: Any) -> Any:
    """Return how to wrap a function again; NotImplemented for most objects."""
    if dispatches(obj):
        return (
            functools.singledispatch,
            (obj.__wrapped__,),
            dict(obj.registry),
            None,
            None,
            register,
        )
    torch = sys.modules.get("torch")
    if torch is None:
        return NotImplemented
    if isinstance(obj, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        return _of_scripted(torch, obj)
    made_of = _compiled_from(obj) if "torch._dynamo" in sys.modules else None
    return NotImplemented if made_of is None else _of_compiled(obj, made_of)


def dispatches(obj: Any) -> bool:
    """Return whether `functools.singledispatch` has made a function."""
    return isinstance(obj, FunctionType) and obj.__code__ is DISPATCHES


def register(function: Any, registry: dict[type, Any]) -> None:
    """Register implementations at a function of `functools.singledispatch`."""
    for cls, implementation in registry.items():
        function.register(cls, implementation)


def _compiled_from(obj: Any) -> Any:
    """Return the function or model that `torch.compile` has compiled, None for other objects."""
    if type(obj).__name__ == "OptimizedModule":
        return obj._orig_mod
    if isinstance(obj, FunctionType) and vars(obj).get("_is_torch_compile"):
        return vars(obj).get("_torchdynamo_orig_callable")
    return None


def _of_compiled(compiled: Any, made_of: Any) -> Any:
    from nbdist.backends.torch_private import compiled_code

    settings = compiled_code.settings(compiled)
    if settings is None:
        raise CannotTravel(RECOMPILE)
    return compile_again, (made_of, settings)


def compile_again(made_of: Any, settings: dict[str, Any]) -> Any:
    """Compile a function or model; nothing is compiled before it is called."""
    import torch

    return torch.compile(made_of, **settings)


def _of_scripted(torch: Any, obj: Any) -> Any:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user has seen that jit is deprecated
        torch.jit.save(obj, file)
    return scripted_again, (file.getvalue(),)


def scripted_again(saved: bytes) -> Any:
    """Load what `torch.jit` has scripted or traced."""
    import io
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(io.BytesIO(saved))


MAKERS = (register, compile_again, scripted_again)
"""The functions of this module that such a pickle refers to."""
