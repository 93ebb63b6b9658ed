"""The few collectives that evaluation and quantization need, over whichever group is formed.

Neither torch nor Horovod is imported for this: who uses one of them has it.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.errors import UsageError

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor


class Ranks(Protocol):
    """Ranks that compute something together."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Return what each rank gives, on every rank."""

    def maximum(self, tensor: Tensor, what: str) -> Tensor:
        """Return the largest of all ranks' values, element by element.

        Raises
        ------
        UsageError
            On all ranks, if not all of them give `what` in the same shape and dtype.
        """


def ranks(process_group: dist.ProcessGroup | None = None) -> Ranks:
    """Return those of a group, by default all: torch's, Horovod's, or this process alone.

    Raises
    ------
    UsageError
        If there are others and no group is formed with them, or this rank is not in the group.
    """
    found = _formed(process_group)
    rank, size = place()
    if isinstance(found, _Alone) and size > 1:
        raise UsageError(
            f"this is rank {rank} of {size}, but the ranks have not formed a process group: call "
            "torch.distributed.init_process_group() or hvd.init() first, or use --backend ddp or "
            "horovod"
        )
    if found.rank < 0:
        raise UsageError(
            "this rank is not a member of process_group, and only members may call this"
        )
    return found


def _formed(process_group: dist.ProcessGroup | None = None) -> Ranks:
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return _Torch(torch, process_group)
    for name in ("horovod.torch", "horovod.tensorflow"):
        hvd = sys.modules.get(name)
        if hvd is not None and hvd.is_initialized():
            return _Horovod(hvd)
    return _Alone()


def place() -> tuple[int, int]:
    """Return this process's rank and how many there are, also where no group is formed."""
    found = _formed()
    if isinstance(found, _Alone) and {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return found.rank, found.size


class _Torch:
    def __init__(self, distributed: Any, group: dist.ProcessGroup | None) -> None:
        self._dist, self._group = distributed, group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._dist.all_gather_object(found, value, group=self._group)
        return found

    def maximum(self, tensor: Tensor, what: str) -> Tensor:
        # Of other shapes a reduction would crash, or mix what does not belong together. Each time:
        # a fault may have ended an earlier agreement on some ranks only.
        mine = _described(tensor, what)
        number = zlib.crc32(mine.encode())
        both = tensor.new_tensor([number, -number], dtype=sys.modules["torch"].int64)
        self._dist.all_reduce(both, self._dist.ReduceOp.MAX, group=self._group)
        if both.sum():
            _refuse_difference(self.gather(mine))
        self._dist.all_reduce(tensor, self._dist.ReduceOp.MAX, group=self._group)
        return tensor


class _Horovod:
    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def gather(self, value: Any) -> list[Any]:
        return list(self._hvd.allgather_object(value))

    def maximum(self, tensor: Tensor, what: str) -> Tensor:
        del what  # Horovod's ranks agree on each operation: one with other shapes raises on all
        # Gathered: Horovod's own maximum is not there with every one of its transports.
        gathered: Tensor = self._hvd.allgather(tensor[None])
        return gathered.amax(0)


class _Alone:
    rank, size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def maximum(self, tensor: Tensor, what: str) -> Tensor:
        del what
        return tensor


def _described(tensor: Tensor, what: str) -> str:
    return f"{what} of {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _refuse_difference(told: list[str]) -> None:
    other = next(rank for rank, one in enumerate(told) if one != told[0])
    raise UsageError(
        f"the ranks have different models: rank 0 is at {told[0]}, and rank {other} at "
        f"{told[other]}. Nothing was combined"
    )
