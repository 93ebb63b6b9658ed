"""Explains why a value cannot be pickled for another process, and what to do instead."""

from __future__ import annotations

import io
import re
import sys
import types
from typing import Any

from nbdist.rank.values import keras_models
from nbdist.rank.values.user_errors import CannotTravel

REMEDIES = (
    (r"generator|coroutine", "it cannot be copied: make a list of it, or create it in the cell"),
    (r"Iter\b|iterator", "create it in the cell, from the object it iterates over"),
    (r"lock|Condition|Event|Semaphore|thread|socket|context|frame|weakref|Future|Task",
     "it belongs to this process: create it in the cell"),
)  # fmt: skip

TORCH_REFUSED = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter",
     "it is or holds a running iterator of a DataLoader", "bring the DataLoader instead"),
    ("torch.distributed", "ProcessGroup",
     "it is or holds a process group", "each rank has its own: use it there"),
    ("torch.nn.parallel", "DistributedDataParallel",
     "it is or holds a DistributedDataParallel model, which belongs to the ranks",
     "its `.module` can be brought: bind it to a name"),
    ("torch.distributed.tensor", "DTensor",
     "it holds shards, which differ between ranks", "`.full_tensor()` combines them"),
)  # fmt: skip


def why_not(err: BaseException) -> str:
    """Say why a value could not be pickled, and what to do."""
    if isinstance(err, CannotTravel):
        return str(err)
    if isinstance(err, RecursionError):
        return "it is nested too deeply to be pickled"
    if "Cannot access storage" in str(err):
        return "it is or holds a tensor without a storage (mkldnn); its `.to_dense()` can travel"
    found = re.search(r"(?:pickle|serialize|serializable)[^']*'([\w.]+)'", str(err))
    what = f"it is or holds a {found[1]}" if found else f"{type(err).__name__}: {err}"
    for pattern, remedy in REMEDIES:
        if re.search(pattern, str(err)):
            return f"{what}; {remedy}"
    return f"{what}; create it in the cell, or bring what it is made from"


def look_at(
    kind: type, devices: int | None, *, to_notebook: bool = False, trial: bool = False
) -> Any:
    """Return a reducer that refuses or converts values of this type; None for other types.

    Parameters
    ----------
    kind
        The type of the value.
    devices
        How many GPUs the receivers see; None puts everything on the CPU there.
    to_notebook
        Whether the receiver is the notebook.
    trial
        Whether the pickle is only a test, so that data may be left out.
    """
    if issubclass(kind, types.GeneratorType):
        return _refuse("it is or holds a generator", REMEDIES[0][1])
    if issubclass(kind, io.IOBase) and not issubclass(kind, (io.BytesIO, io.StringIO)):
        return _refuse_file
    torch = sys.modules.get("torch")
    if torch is not None and kind.__module__.startswith("torch"):
        return _look_at_torch(torch, kind, devices, trial=trial)
    return keras_models.refuses(kind, to_notebook=to_notebook)


def _refuse(what: str, remedy: str) -> Any:
    def refuse(_obj: object) -> Any:
        raise CannotTravel(f"{what}; {remedy}")

    return refuse


def _refuse_file(file: Any) -> Any:
    if file in (sys.stdout, sys.stderr):
        return NotImplemented
    name = getattr(file, "name", "")
    raise CannotTravel(f"it is or holds an open file ({name!r}); open it in the cell")


def _look_at_torch(torch: Any, kind: type, devices: int | None, *, trial: bool) -> Any:
    from nbdist.rank.values import storages

    if "torch_xla" in sys.modules and issubclass(kind, torch.Tensor):
        return lambda tensor: storages.reduce_xla(tensor, devices)
    if issubclass(kind, torch.storage.TypedStorage):
        return storages.reduce_typed
    if issubclass(kind, torch.UntypedStorage):
        reduce = storages.check if trial else storages.reduce
        return lambda storage: reduce(storage, devices)
    if issubclass(kind, torch.device) and devices is not None:
        return storages.reduce_device
    for place, name, what, remedy in TORCH_REFUSED:
        # A class that was never imported has no instances.
        found = getattr(sys.modules.get(place), name, None)
        if found is not None and issubclass(kind, found):
            return _refuse(what, remedy)
    return None
