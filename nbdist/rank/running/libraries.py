"""Makes other libraries (Lightning, accelerate, tqdm) take a rank for a training process."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.backends.choice import Backend

TEXT_BARS = {"tqdm": "tqdm", "trange": "trange", "tqdm_notebook": "tqdm", "tnrange": "trange"}
"""Names in `tqdm.notebook`, and their text versions in `tqdm.std`."""


def welcome(backend: Backend, local_rank: int) -> None:
    """Prepare the process for libraries that look for a notebook. Once, before any cell."""
    # Lightning refuses strategy="ddp" if `sys.ps1`, which IPython sets, is there.
    if hasattr(sys, "ps1"):
        del sys.ps1
    sys.modules.setdefault("tqdm.notebook", _TextBars("tqdm.notebook"))
    if backend.name != "ddp":
        return
    device = str(backend.device())
    if device == "cpu":
        # Without a GPU, accelerate joins the other ranks only if it is set to use the CPU.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    elif device != f"cuda:{local_rank}":
        # Ranks share GPUs, but accelerate takes the rank's number for its GPU's number.
        os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")


class _TextBars(ModuleType):
    """Replaces `tqdm.notebook`: messages of its widgets do not reach the notebook from a rank.

    ``tqdm.auto`` uses text bars here by itself, because it does not find `IProgress`.
    """

    def __getattr__(self, name: str) -> Any:  # a name of tqdm
        if name not in TEXT_BARS:
            msg = f"{self.__name__} has no {name!r} on a rank, where bars are text"
            raise AttributeError(msg)
        return getattr(importlib.import_module("tqdm.std"), TEXT_BARS[name])
