"""Reads with which settings `torch.compile` has made a function or a model."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def settings(compiled: Any) -> dict[str, Any] | None:
    """Return arguments with which `torch.compile` makes the same; None if they cannot be read.

    Parameters
    ----------
    compiled
        What `torch.compile` has returned.
    """
    with suppress(AttributeError, KeyError, ValueError):  # in another release of torch
        context = _context(compiled)
        backend = context.callback
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        found = {"fullgraph": getattr(context, "fullgraph", False), "dynamic": backend.dynamic}
        if type(backend).__name__ == "_TorchCompileInductorWrapper":
            # A mode is a set of options, which the configuration has.
            return {**found, "options": dict(backend.config) or None}
        if type(backend).__name__ == "_TorchCompileWrapper":
            return {**found, "backend": backend.compiler_fn, **backend.kwargs}
    return None


def _context(compiled: Any) -> Any:
    """Return the object that starts the compiler when the function or model is called."""
    if "dynamo_ctx" in vars(compiled):
        return compiled.dynamo_ctx
    held = dict(zip(compiled.__code__.co_freevars, compiled.__closure__, strict=True))
    return held["self"].cell_contents
