"""Adds up sparse tensors over gloo without torch's own sparse all-reduce, which may crash.

Each gloo group has two threads, and both write down the name of a collective that they have ended,
without a lock (`runLoop` in ProcessGroupGloo.cpp; seen in torch 2.13). The name of a sparse
all-reduce is so long that it lies in memory of its own. If another collective ends at that moment,
this memory is freed twice, or written to after that, and the process dies, perhaps much later. One
thread for each group is no way out: hooks such as PowerSGD's wait in one thread for the other.

So the ranks gather each other's indices and values, as torch does, but by collectives with short
names. A call returns when the sum is there.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

GLOO = "gloo"
CPU = torch.device("cpu")
TELLS_OPERATION = "op(__torch__.torch.classes.c10d.ReduceOp"
"""The beginning of the schema of the method by which a kernel learns the operation."""


def possible() -> bool:
    """Return whether this torch tells a kernel which operation is asked for; 2.9 does not."""
    inside: Any = torch._C
    schemas = map(str, inside._jit_get_custom_class_schemas())
    return any(schema.startswith(TELLS_OPERATION) for schema in schemas)


@functools.cache
def replace() -> torch.library.Library | None:
    """Let all-reduces of sparse tensors on CPUs, those of DDP too, use `add_up`; once."""
    if not possible():  # a maximum would silently become a sum
        return None
    library = torch.library.Library("c10d", "IMPL")  # its end would undo the replacement
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is a kernel already
        library.impl("allreduce_", _all_reduce, "SparseCPU")
    return library


def _all_reduce(
    tensors: list[torch.Tensor], boxed: Any, op: Any, *_more: object
) -> tuple[list[torch.Tensor], Any]:
    """Serve ``c10d::allreduce_``. Any thread that begins a collective."""
    group: Any = dist.ProcessGroup.unbox(boxed)
    backend = group._get_backend(CPU)
    reduce: Any = dist.ReduceOp(dist.ReduceOp.RedOpType(op.op()))
    if backend.name() != GLOO or reduce != dist.ReduceOp.SUM or len(tensors) != 1:
        options = dist.AllreduceOptions()
        options.reduceOp = reduce
        return tensors, backend.allreduce(tensors, options).boxed()
    total = add_up(tensors[0], group)
    tensors[0].copy_(total)
    done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    done.set_result([total])
    return tensors, c10d._create_work_from_future(done).boxed()  # type: ignore[attr-defined]


def add_up(mine: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    """Return the sum of the sparse tensors of a group's ranks; every rank must call it."""
    mine = mine.coalesce()
    indices, values = mine.indices(), mine.values()
    shape = [mine.sparse_dim(), *mine.shape]
    about = _gather(torch.tensor([values.shape[0], *shape]), group)
    if any(theirs[1:].tolist() != shape for theirs in about):
        raise RuntimeError("Sparse dimensions do not match")  # torch's own words
    counts = [int(theirs[0]) for theirs in about]
    missing = max(counts) - values.shape[0]  # all ranks must send as much
    all_indices = _gather(pad(indices, (0, missing)), group)
    all_values = _gather(pad(values, (*[0, 0] * (values.dim() - 1), 0, missing)), group)
    parts = [
        torch.sparse_coo_tensor(i[:, :count], v[:count], mine.shape, check_invariants=False)
        for i, v, count in zip(all_indices, all_values, counts, strict=True)
    ]
    return functools.reduce(torch.add, parts).coalesce()


def _gather(mine: torch.Tensor, group: ProcessGroup) -> list[torch.Tensor]:
    found = [torch.empty_like(mine) for _ in range(group.size())]
    group.allgather([found], [mine.contiguous()]).wait()
    return found
