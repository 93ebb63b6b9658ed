"""Resets the gradient scalers whose step was broken off. Main thread.

Otherwise they refuse every later step ("already called since the last update"), or take over from
the broken step what they knew of its gradients. A scaler that an earlier cell has left there, to go
on in the next one, stays as it is; and so does every scaler after a mistake that broke nothing.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from nbdist.backends.models.trained_objects import is_a, trained

if TYPE_CHECKING:
    from collections.abc import Mapping

SCALER = "/torch/amp/grad_scaler.py"
"""The end of the name of the file of scalers."""
_MAKERS = ("__init__", "__setstate__")
"""The methods by which a scaler begins to exist, also by unpickling."""


class Scalers:
    """The gradient scalers of this process, and where they stood when the cell began."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stood: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Hear of scalers that are made; once in each process."""
        for name in _MAKERS:
            self._watch(name)

    def _watch(self, name: str) -> None:
        make = getattr(torch.amp.GradScaler, name)

        @functools.wraps(make)
        def made(scaler: Any, *args: Any, **options: Any) -> None:
            make(scaler, *args, **options)
            self._known.add(scaler)

        setattr(torch.amp.GradScaler, name, made)

    def begin(self) -> None:
        """Note where each scaler stands."""
        for scaler in list(self._known):
            self._stood[scaler] = _stands(scaler)

    def settle(self, namespace: Mapping[str, object]) -> None:
        """Reset the scalers that the cell has moved and left in the middle of a step."""
        found = [one for one in trained(namespace).values() if is_a(one, torch.amp.GradScaler)]
        for scaler in {id(one): one for one in (*found, *self._known)}.values():
            stages = _stages(scaler)
            if stages and _stands(scaler) != self._stood.get(scaler):
                stages.clear()


def _stages(scaler: Any) -> dict[int, dict[str, Any]]:
    """Return what a scaler keeps of each optimizer's step; private, may be missing elsewhere."""
    return getattr(scaler, "_per_optimizer_states", {})


def _stands(scaler: Any) -> str:
    return str({key: state.get("stage") for key, state in _stages(scaler).items()})
