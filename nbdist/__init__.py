"""Distributed training from a Jupyter notebook: ``%load_ext nbdist``, then ``%%distributed``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbdist.version import __version__

if TYPE_CHECKING:
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.notebook.clusters import Cluster
    from nbdist.notebook.comparing import compare
    from nbdist.notebook.current_cluster import cluster, jobs
    from nbdist.notebook.detached_jobs import attach
    from nbdist.notebook.launching import Call, launch
    from nbdist.notebook.loader_speed import reading
    from nbdist.notebook.preloading import preload
    from nbdist.notebook.scaling import scale
    from nbdist.rank.metrics.logger import log
    from nbdist.rank.metrics.progress import progress

    evaluation: ModuleType
    loops: ModuleType
    quantization: ModuleType

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
    "Call": "nbdist.notebook.launching",
    "Cluster": "nbdist.notebook.clusters",
    "attach": "nbdist.notebook.detached_jobs",
    "cluster": "nbdist.notebook.current_cluster",
    "compare": "nbdist.notebook.comparing",
    "jobs": "nbdist.notebook.current_cluster",
    "launch": "nbdist.notebook.launching",
    "log": "nbdist.rank.metrics.logger",
    "preload": "nbdist.notebook.preloading",
    "progress": "nbdist.rank.metrics.progress",
    "reading": "nbdist.notebook.loader_speed",
    "scale": "nbdist.notebook.scaling",
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
    from nbdist.notebook.session import session  # for notebooks only

    # First of all: torch is imported there, for a second or more, while the rest is imported here.
    session.begin()
    from nbdist.magics import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Stop the notebook's cluster and take the magics away (``%unload_ext nbdist``)."""
    from nbdist.magics import unregister  # for notebooks only

    unregister(shell)
