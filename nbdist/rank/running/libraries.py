"""What other libraries find in a rank when they look around: a training process, no notebook."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.backends.choice import Backend

TEXT_BARS = {"tqdm": "tqdm", "trange": "trange", "tqdm_notebook": "tqdm", "tnrange": "trange"}
"""Names in `tqdm.notebook`, and those in `tqdm.std` that do the same in text."""


def welcome(backend: Backend, local_rank: int) -> None:
    """Set the place for libraries that ask where they are. Once, before any cell."""
    # Lightning refuses strategy="ddp" where this is, which IPython sets.
    if hasattr(sys, "ps1"):
        del sys.ps1
    sys.modules.setdefault("tqdm.notebook", _TextBars("tqdm.notebook"))
    if backend.name != "ddp":
        return
    device = str(backend.device())
    if device == "cpu":
        # Without a GPU, accelerate joins the other ranks only when it was told to use the CPU.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    elif device != f"cuda:{local_rank}":
        # Ranks share GPUs, and accelerate gives DDP the rank's number for its GPU's.
        os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")


class _TextBars(ModuleType):
    """Stands for tqdm's bars that are widgets: their messages reach no front end from a rank.

    ``tqdm.auto``, which finds no `IProgress` here, falls back on text by itself.
    """

    def __getattr__(self, name: str) -> Any:  # what tqdm has under this name
        if name not in TEXT_BARS:
            msg = f"{self.__name__} has no {name!r} on a rank, where bars are text"
            raise AttributeError(msg)
        return getattr(importlib.import_module("tqdm.std"), TEXT_BARS[name])
