"""What plain pickles get wrong: torch's optimizers arrive hollow, dataclasses' marks as copies."""

from __future__ import annotations

import copyreg
import dataclasses
import pickle
import sys
from typing import Any

PATCHED = ("step", "_opt_called")
"""What learning-rate schedulers put into an optimizer, and put in again where they arrive."""


MARKS = {
    id(getattr(dataclasses, name)): name
    for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
    if hasattr(dataclasses, name)
}
"""Of each there is one: a dataclass that is derived from one with a copy has other defaults."""


def reduce(obj: Any) -> Any:
    """Return how to rebuild an object, NotImplemented for most (pickle's protocol).

    Raises
    ------
    pickle.PicklingError
        If it holds only this rank's part of a state.
    """
    if id(obj) in MARKS:
        return MARKS[id(obj)]
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
