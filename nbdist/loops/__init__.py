"""Callbacks and loggers for training loops of Lightning, Keras, transformers, accelerate.

They use the libraries' own extension points, and turn what is logged into curves and bars. Each
library has its own module, imported when one of its names is first used. These modules only call
`nbdist.log` and count loops, so outside a rank they do nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.loops.accelerate import AccelerateTracker
    from nbdist.loops.keras import KerasCallback
    from nbdist.loops.lightning import LightningLogger, LightningProgress
    from nbdist.loops.tensorboard import mirror_tensorboard
    from nbdist.loops.transformers import TransformersCallback

__all__ = [
    "AccelerateTracker",
    "KerasCallback",
    "LightningLogger",
    "LightningProgress",
    "TransformersCallback",
    "mirror_tensorboard",
]

_MODULES = {
    "AccelerateTracker": "accelerate",
    "KerasCallback": "keras",
    "LightningLogger": "lightning",
    "LightningProgress": "lightning",
    "TransformersCallback": "transformers",
    "mirror_tensorboard": "tensorboard",
}


def __getattr__(name: str) -> Any:  # whatever the name stands for
    if name not in _MODULES:
        msg = f"module 'nbdist.loops' has no attribute {name!r}; it has {', '.join(__all__)}"
        raise AttributeError(msg)
    module = importlib.import_module(f"nbdist.loops.{_MODULES[name]}")
    found = globals()[name] = getattr(module, name)
    return found
