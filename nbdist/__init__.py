"""Distributed training from a Jupyter notebook: ``%load_ext nbdist``, then ``%%distributed``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.clusters import Cluster
    from nbdist.comparing import compare
    from nbdist.current import cluster, jobs
    from nbdist.detached import attach
    from nbdist.launching import Call, launch
    from nbdist.measuring import reading
    from nbdist.preloading import preload
    from nbdist.rank.metrics import log
    from nbdist.rank.progress import progress
    from nbdist.scaling import scale

    evaluation: ModuleType
    loops: ModuleType
    quantization: ModuleType

__version__ = "0.1.0"
__all__ = [
    "Call",
    "Cluster",
    "__version__",
    "attach",
    "cluster",
    "compare",
    "jobs",
    "launch",
    "load_ipython_extension",
    "log",
    "preload",
    "progress",
    "reading",
    "scale",
]

# A rank imports this package too and must stay light: the face is loaded when it is asked for.
_FACE = {
    "Call": "nbdist.launching",
    "Cluster": "nbdist.clusters",
    "attach": "nbdist.detached",
    "cluster": "nbdist.current",
    "compare": "nbdist.comparing",
    "jobs": "nbdist.current",
    "launch": "nbdist.launching",
    "log": "nbdist.rank.metrics",
    "preload": "nbdist.preloading",
    "progress": "nbdist.rank.progress",
    "reading": "nbdist.measuring",
    "scale": "nbdist.scaling",
}
_MODULES = ("evaluation", "loops", "quantization")


def __getattr__(name: str) -> Any:  # whatever the name stands for
    if name in _MODULES:
        return importlib.import_module(f"nbdist.{name}")
    if name not in _FACE:
        msg = f"module 'nbdist' has no attribute {name!r}"
        raise AttributeError(msg)
    found = globals()[name] = getattr(importlib.import_module(_FACE[name]), name)
    return found


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, and start what the first cell will need (``%load_ext nbdist``)."""
    from nbdist.hub import living  # for notebooks only

    # First of all: torch is imported there, for a second or more, while the rest is imported here.
    living.prepare()
    from nbdist.magics import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Stop the notebook's cluster and take the magics away (``%unload_ext nbdist``)."""
    from nbdist.magics import unregister  # for notebooks only

    unregister(shell)
