"""torch's optimizers in pickles, whole: by themselves they leave out what a subclass has added."""

from __future__ import annotations

import copyreg
import pickle
import sys
from typing import Any

PATCHED = ("step", "_opt_called")
"""What learning-rate schedulers put into an optimizer, and put in again where they arrive."""


def reduce_optimizer(obj: Any) -> Any:
    """Return how to rebuild an optimizer, NotImplemented for what is none (pickle's protocol).

    Raises
    ------
    pickle.PicklingError
        If it holds only this rank's part of a state.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(obj, torch.optim.Optimizer):
        return NotImplemented
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if zero is not None and isinstance(obj, zero.ZeroRedundancyOptimizer):
        raise pickle.PicklingError("it holds this rank's part of the state, and each has another")
    kind: Any = type(obj)
    base = torch.optim.Optimizer
    if kind.__getstate__ is not base.__getstate__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return NotImplemented  # a way of its own
    added = {name: value for name, value in vars(obj).items() if name not in PATCHED}
    return copyreg.__newobj__, (kind,), {**added, **obj.__getstate__()}  # type: ignore[attr-defined]
