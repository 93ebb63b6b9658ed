"""Pickles a rank's variables for another rank: groups by name, GPU data for that rank's own GPU."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from nbdist.rank.values import keras_models
from nbdist.rank.values.overlaps import Overlaps, may_overlap, overlapping
from nbdist.rank.values.pickles import ByValue


class Pickler(ByValue):
    """Pickles for another rank: process groups by name, GPU data for that rank's own GPU."""

    def __init__(self, file: Any, overlaps: Overlaps, *, trial: bool = False) -> None:
        super().__init__(file, carry_globals=False)
        self._memory = overlapping(_to_own_gpu, overlaps, trial=trial)

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild `obj` (see `pickle.Pickler.reducer_override`)."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and isinstance(obj, distributed.ProcessGroup):
            return _group_named, (_ddp().name_of(obj),)
        parallel = sys.modules.get("torch.nn.parallel")
        if parallel is not None and isinstance(obj, parallel.DistributedDataParallel):
            return _blank, (type(obj),), _ddp().take_apart(obj), None, None, _set_ddp_state
        tensors = sys.modules.get("torch.distributed.tensor")
        if tensors is not None and isinstance(obj, tensors.DTensor):
            msg = "it holds shards, which differ between ranks: those of the replaced rank are lost"
            raise pickle.PicklingError(msg)
        moved = self._memory(obj) if may_overlap(type(obj)) else _to_own_gpu(obj)
        if moved is not NotImplemented:
            return moved
        if keras_models.trained_by_horovod(obj):
            raise pickle.PicklingError(f"{keras_models.LIVES_THERE}: compile the model there")
        return super().reducer_override(obj)


def _to_own_gpu(obj: Any) -> Any:
    """Return how to rebuild an object on this rank's GPU on the other rank's own GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not type(obj).__module__.startswith("torch"):
        return NotImplemented
    from nbdist.rank.values import storages

    if isinstance(obj, torch.storage.TypedStorage):
        return storages.reduce_typed(obj)
    if isinstance(obj, torch.UntypedStorage):
        return storages.reduce_for_rank(obj)
    return storages.reduce_device_for_rank(obj) if isinstance(obj, torch.device) else NotImplemented


def _ddp() -> Any:  # the rank's `Ddp`
    from nbdist.backends.ddp import rank_group  # needs torch

    if rank_group.current is None:
        raise pickle.PicklingError("it holds a process group, which only --backend ddp supports")
    return rank_group.current


def _group_named(name: str) -> Any:  # a ProcessGroup
    return _ddp().group_named(name)


def _blank(cls: Any) -> Any:
    return cls.__new__(cls)


def _set_ddp_state(model: Any, state: dict[str, Any]) -> None:
    _ddp().put_together(model, state)
