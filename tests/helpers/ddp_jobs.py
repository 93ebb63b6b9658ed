"""The jobs that ranks run in the tests of the ddp backend; `kept` is a rank's namespace."""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

from nbdist.rank.looking.copied_names import Pickler
from nbdist.rank.values.overlaps import Overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Kept = dict[str, Any]

MADE = 200
"""How many groups `make_and_destroy` makes."""


class Broken(Exception):
    """The error of a rank that fails."""


def all_reduce(kept: Kept) -> float:
    value = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(value)
    return value.item()


def make(kept: Kept, kind: str) -> None:
    """Make a model of a kind and its optimizer."""
    torch.manual_seed(dist.get_rank())
    ranks = list(range(dist.get_world_size()))
    if kind in ("subgroup", "power sgd"):
        dist.new_group([0])
        kept["group"] = dist.new_group(ranks)
    kept["model"] = wrap(kept, kind, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    kept["optimizer"] = torch.optim.Adam(kept["model"].parameters(), lr=0.01)


def wrap(kept: Kept, kind: str, net: nn.Sequential) -> nn.Module:
    if kind == "tensor":
        for parameter in net.parameters():
            dist.broadcast(parameter.detach(), src=0)
        return net
    if kind in ("ddp", "static graph", "held", "compiled"):
        model = DistributedDataParallel(net, static_graph=kind == "static graph")
        if kind == "held":  # torch.compile makes such a copy, too
            kept["copy"] = dict(vars(model))
        return _compiled(model) if kind == "compiled" else model
    if kind == "built-in hook":
        model = DistributedDataParallel(net)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)  # type: ignore[attr-defined]
        return model
    if kind == "power sgd":
        return _compressed(DistributedDataParallel(net), kept["group"])
    if kind == "subgroup":
        return DistributedDataParallel(net, process_group=kept["group"])
    from torch.distributed.fsdp import fully_shard

    fully_shard(net[0])
    fully_shard(net)
    return net


def _compiled(model: DistributedDataParallel) -> nn.Module:
    compiled: Any = torch.compile(model, backend="eager")
    return compiled  # type: ignore[no-any-return]


def _compressed(model: DistributedDataParallel, group: Any) -> DistributedDataParallel:
    # With full rank the compressed gradients are almost exact.
    state = power_sgd.PowerSGDState(group, matrix_approximation_rank=8, start_powerSGD_iter=2)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    return model


def batch(rank: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))


def step(kept: Kept, fail: str = "") -> None:
    """Train one step; raise at the named place."""
    model = kept["model"]
    kept["optimizer"].zero_grad()
    if fail == "before":
        raise Broken(fail)
    hooks = list(_traps(model)) if fail == "forward" else []
    try:
        loss = model(batch(dist.get_rank())).square().mean()
    finally:
        for hook in hooks:
            hook.remove()
    if fail == "backward":
        loss.register_hook(_break)
    loss.backward()
    if isinstance(model, nn.Sequential) and not hasattr(model, "unshard"):
        _average(model)
    if fail == "after":
        raise Broken(fail)
    kept["optimizer"].step()


def _average(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def _traps(model: nn.Module) -> Iterator[Any]:
    last = list(model.modules())[-1]
    yield last.register_forward_pre_hook(_break)


def _break(*_args: object) -> None:
    raise Broken


def gradient_error(kept: Kept) -> float:
    """Train a step; return how far its gradients are from those of one process without groups."""
    model = kept["model"]
    whole = {name.split("module.")[-1]: _whole(p) for name, p in model.named_parameters()}
    alone = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    alone.load_state_dict(whole)
    size = dist.get_world_size()
    (sum(alone(batch(rank)).square().mean() for rank in range(size)) / size).backward()
    step(kept)
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    return max((p.grad - _whole(q.grad)).abs().max().item() for p, q in pairs)  # type: ignore[operator]


def _whole(tensor: Any) -> torch.Tensor:
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()  # type: ignore[no-any-return]


def checksum(kept: Kept) -> str | None:
    digest = kept["ddp"].checksums(kept).get("model")
    return None if digest is None or digest.sharded else str(digest.content)


def identities(kept: Kept) -> list[int]:
    """Return the ids of objects that must outlive a fault."""
    held = [kept["model"], kept["optimizer"], dist.group.WORLD, *kept["model"].parameters()]
    return [id(thing) for thing in held]


def identities_of_models(kept: Kept) -> list[int]:
    """Return the ids of objects that must outlive the recovery with new groups."""
    return [id(thing) for thing in (kept["model"], kept["optimizer"], *kept["model"].parameters())]


def sparse_sums(kept: Kept) -> list[list[float]]:
    """Return sums over the ranks of sparse tensors; some are sparse in one dimension only."""
    rows = torch.zeros(4, 3)
    rows[: dist.get_rank()] = dist.get_rank()  # rank 0 has none
    sums = [rows.to_sparse(1), rows.to_sparse(), rows[:1].double().to_sparse(1)]
    works = [dist.all_reduce(value, async_op=True) for value in sums]
    for work in works:
        work.wait()
    assert all(value.is_sparse for value in sums)
    return [value.to_dense().flatten().tolist() for value in sums]


def names_of_sparse_sum(kept: Kept) -> set[str]:
    """Return the names of torch's collectives in an all-reduce of a sparse tensor."""
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(1, 8).to_sparse(1))
    return {event.name for event in profile.events() if event.name.startswith("gloo:")}


class Holder:
    """An object of the user that has a group."""

    def __init__(self, group: Any) -> None:
        self.group = group


def make_for_losing(kept: Kept) -> None:
    """Make objects that cannot be recovered, and some that can."""
    from torch.distributed.device_mesh import init_device_mesh

    make(kept, "fsdp")
    ranks = list(range(dist.get_world_size()))
    kept["mesh"] = init_device_mesh("cpu", (len(ranks),))
    net = nn.Linear(2, 2)
    kept["delayed"] = DistributedDataParallel(
        net,
        delay_all_reduce_named_params=[("bias", net.bias)],
        param_to_hook_all_reduce=net.weight,
    )
    kept["group"], kept["holder"] = dist.new_group(ranks), Holder(dist.new_group(ranks))
    kept["meshed"] = DistributedDataParallel(nn.Linear(2, 2), device_mesh=kept["mesh"])
    kept["hooked"] = model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    model.register_comm_hook(kept["holder"].group, double)
    model.register_forward_hook(lambda *_: kept.update(seen=kept.get("seen", 0) + 1))
    model.eval()
    kept["world"] = dist.group.WORLD


def double(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Return twice the mean gradient: a communication hook that has a group of its own."""
    del state
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


double.__annotations__.clear()  # DDP checks annotations, which are only texts here


def use_what_was_kept(kept: Kept) -> list[float]:
    found = []
    for group in (kept["group"], kept["holder"].group):
        value = torch.ones(1)
        dist.all_reduce(value, group=group)
        found.append(value.item())
    assert kept["world"] is dist.group.WORLD
    model = kept["hooked"]
    assert not model.training
    model(torch.ones(1, 2)).sum().backward()
    return [*found, model.module.weight.grad.sum().item(), kept["seen"]]


def compute(kept: Kept, folder: Path) -> None:
    """Stay in a DDP model's forward, outside of collectives, until there is a file ``go``."""
    model = kept["model"]

    def wait(*_: object) -> None:
        (folder / f"in{dist.get_rank()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)

    model.module.register_forward_pre_hook(wait)
    with torch.no_grad():
        model(batch(0))


def sync(kept: Kept, source: int) -> None:
    kept["ddp"].sync(kept, "model", source)
    kept["ddp"].sync(kept, "optimizer", source)


def optimizer_state(kept: Kept) -> list[float]:
    state = kept["optimizer"].state_dict()["state"]
    return [float(value.sum()) for entry in state.values() for value in entry.values()]


def new_group(kept: Kept, fail: str = "") -> str:
    if fail:
        raise Broken(fail)
    group = dist.new_group()
    assert group is not None
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    assert value.item() == dist.get_world_size()
    return str(group.group_name)


def mismatched(kept: Kept) -> None:
    """Wait forever, each rank in another operation."""
    rank = dist.get_rank()
    if rank == 0:
        dist.all_reduce(torch.ones(3))
        dist.barrier()
    elif rank == 1:
        dist.recv(torch.ones(5), src=0)
    else:
        dist.broadcast(torch.ones(7), src=1)


def die(kept: Kept) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def give(kept: Kept) -> bytes:
    """Pickle the trained objects, for a rank that was replaced."""
    return _pickled((kept.get("group"), kept["model"], kept["optimizer"], dist.group.WORLD))


def _pickled(values: object) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, Overlaps()).dump(values)
    return buffer.getvalue()


def give_one(kept: Kept, name: str) -> bytes:
    return _pickled(kept[name])


def take_one(kept: Kept, data: bytes) -> None:
    pickle.loads(data)  # noqa: S301  # our own


def holds_its_group(kept: Kept) -> bool:
    """Return whether the state of the model's hook has the same group as the model."""
    ((_, state),) = kept["model"]._comm_hooks
    return state.process_group is kept["group"]


def make_of_rank_zero(kept: Kept) -> None:
    """Make a model that only rank 0 trains."""
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        kept["alone"] = DistributedDataParallel(nn.Linear(2, 2), process_group=group)


def through_pickle(kept: Kept) -> None:
    """Replace the model by a copy that torch itself has unpickled, and give it a hook."""
    kept["model"] = pickle.loads(pickle.dumps(kept["model"]))  # noqa: S301  # our own
    kept["model"]._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)  # type: ignore[attr-defined]
    kept["optimizer"] = torch.optim.Adam(kept["model"].parameters(), lr=0.01)


def hook_in_use(kept: Kept) -> str:
    """Return the name of the hook that the model's reducer has."""
    return str(kept["model"]._get_ddp_logging_data()["comm_hook"])


def destroy(kept: Kept, name: str = "") -> None:
    """End a group, or all of them."""
    dist.destroy_process_group(kept[name] if name else None)


def destroy_that_of_others(kept: Kept) -> str:
    """End a group on rank 0 that rank 1 does not know."""
    group = dist.new_group([0])
    dist.destroy_process_group(group)
    return type(group).__name__


def form_without_fsdp(kept: Kept, port: int, generation: int, why: str) -> dict[str, str]:
    """Begin a generation as with a torch whose FSDP2 modules cannot be renewed."""
    lost: dict[str, str] = kept["ddp"].form(port, generation, namespace=kept, fsdp=why)
    return lost


def functional(kept: Kept) -> float:
    from torch.distributed import _functional_collectives as functional

    world = dist.group.WORLD
    assert world is not None
    found = functional.all_reduce(torch.ones(1), "sum", world)
    return float(functional.wait_tensor(found).item())


def make_for_copying(kept: Kept) -> None:
    """Make objects that differ between the ranks, of kinds that are hard to send."""
    rank = dist.get_rank()
    kept["words"] = words = nn.Embedding(6, 2, sparse=True)
    kept["sgd"] = torch.optim.SGD(words.parameters(), lr=0.1, momentum=0.9)
    words(torch.tensor([rank, 3])).sum().backward()
    kept["sgd"].step()
    kept["turned"] = torch.full((2, 3), float(rank)).t()
    kept["schedule"] = torch.optim.lr_scheduler.StepLR(kept["sgd"], 1 + rank)


def copy_all(kept: Kept, source: int) -> list[Any]:
    for name in ("words", "sgd", "turned", "schedule"):
        kept["ddp"].sync(kept, name, source)
    momentum = kept["sgd"].state[kept["words"].weight]["momentum_buffer"]
    return [
        kept["words"].weight.tolist(), momentum.is_sparse, momentum.to_dense().tolist(),
        kept["turned"].tolist(), kept["turned"].is_contiguous(), kept["schedule"].step_size,
    ]  # fmt: skip


def refused_to_copy(kept: Kept, names: list[str]) -> list[tuple[str, list[int]]]:
    """Return why the objects with these names cannot be copied, and which ranks share them."""
    outlines = [kept["ddp"].outline(kept, name) for name in names]
    return [(outline.why, outline.ranks) for outline in outlines]


def make_not_to_copy(kept: Kept) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    group = dist.new_group([0])
    kept["net"] = nn.Linear(2, 2)
    if dist.get_rank() == 0:
        kept["net"] = DistributedDataParallel(kept["net"], process_group=group)
    kept["zero"] = ZeroRedundancyOptimizer(kept["model"].parameters(), torch.optim.SGD, lr=0.1)
    rows = nn.Parameter(torch.eye(2).to_sparse(), requires_grad=False)
    kept["rows"], kept["words"] = nn.ParameterList([rows]), ["no", "model"]


def first_kind_of_fsdp(kept: Kept) -> str:
    """Return why a `FullyShardedDataParallel` model cannot be compared."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    kept["flat"] = FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu"))
    kept["of_flat"] = torch.optim.SGD(kept["flat"].parameters(), lr=0.1)
    return str(kept["ddp"].checksums(kept)["flat"].why)


def init_alone(kept: Kept) -> tuple[str, bool]:
    """Form a group of one rank; return a sum in it, and whether the old group is back then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    rank = dist.get_rank()
    dist.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    total = all_reduce(kept)
    dist.destroy_process_group()
    return f"{rank}: {total:g}", bool(kept["ddp"].formed())


def own_gloo(kept: Kept) -> tuple[bool, float, int]:
    """Make a gloo backend; return whether WORLD's is one, its time limit and its threads."""
    from torch.distributed import distributed_c10d as c10d

    make: Any = c10d.ProcessGroupGloo
    made = make(HashStore(), 0, 1, _threads=3)
    world: Any = dist.group.WORLD
    alike = isinstance(world._get_backend(torch.device("cpu")), c10d.ProcessGroupGloo)
    return alike, made.options._timeout.total_seconds(), made.options._threads


def log_otherwise(kept: Kept) -> list[float]:
    """Train while torch's logger differs from the known one; return the time of the next look."""
    from nbdist.backends.torch_private import timed_waits

    logger: Any = dist.Logger  # type: ignore[attr-defined]
    hooked = logger.set_runtime_stats_and_log
    timed_waits.time_waits()
    assert logger.set_runtime_stats_and_log is hooked, "it is hooked once"
    kept_log, logger._get_ddp_logging_data = logger._get_ddp_logging_data, None
    try:
        while timed_waits._look_at < timed_waits.NEVER:
            step(kept)
            time.sleep(timed_waits.MEASURE_SECONDS / 4)
    finally:
        logger._get_ddp_logging_data = kept_log
    model = DistributedDataParallel(nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    return [timed_waits._look_at]


def take(kept: Kept, data: bytes) -> None:
    kept["group"], kept["model"], kept["optimizer"], world = pickle.loads(data)  # noqa: S301  # our own
    assert world is dist.group.WORLD


def models_that_live(kept: Kept) -> int:
    """Make and drop a DDP model to which its module refers; return how many models are left."""
    model = DistributedDataParallel(nn.Linear(2, 1))
    model.module.register_forward_hook(partial(print, model))
    del model
    gc.collect()
    return len(kept["ddp"]._made.models)


def resources(kept: Kept) -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def memory(kept: Kept) -> int:
    import psutil

    return int(psutil.Process().memory_full_info().uss)


def user_inits(kept: Kept) -> list[str]:
    """Call ``init_process_group`` as users do; return what was observed."""
    world = dist.group.WORLD
    dist.init_process_group()
    dist.init_process_group("gloo", init_method="env://")
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl", rank=dist.get_rank(), world_size=dist.get_world_size()
    )
    assert dist.group.WORLD is world
    dist.destroy_process_group()
    assert not dist.is_initialized()
    assert not kept["ddp"].formed()
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not world
    assert kept["ddp"].formed()
    alone = dist.get_rank()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    seen = [f"{alone} of {dist.get_world_size()}", str(kept["ddp"].formed())]
    dist.destroy_process_group()
    return seen


def make_and_destroy(kept: Kept, kind: str) -> int:
    """Create groups and destroy each at once; return how many."""
    ranks = list(range(dist.get_world_size()))
    for _ in range(MADE):
        if kind == "world":
            dist.destroy_process_group()
            dist.init_process_group("gloo")
        else:
            dist.destroy_process_group(dist.new_group(ranks))
    return MADE


def accelerate_twice(kept: Kept) -> float:
    from accelerate import Accelerator

    for _ in range(2):
        accelerator = Accelerator(cpu=True)
        total = accelerator.reduce(torch.ones(1)).item()
        model = accelerator.prepare(nn.Linear(2, 2))
        accelerator.backward(model(torch.ones(1, 2)).sum())
        accelerator.end_training()
        accelerator.state._reset_state(reset_partial_state=True)
    assert not kept["ddp"].formed()
    return float(total)


def device_mesh(kept: Kept) -> float:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    value = torch.ones(1)
    dist.all_reduce(value, group=mesh.get_group())
    return value.item()


def split_as_torch_does(kept: Kept) -> list[str]:
    """Split groups that were never renewed; return what is said against it, by torch alone, too."""
    ranks = list(range(dist.get_world_size()))
    kept["group"] = dist.new_group(ranks)
    ours: Any = dist.split_group
    said = [_refused(call, split_ranks=[ranks]) for call in (ours, ours.__wrapped__)]
    # A group of one: of two ranks, torch's method for Gloo keeps one waiting for ever now and then.
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return [*said, _refused(alone.split_group, [0])]


def split(kept: Kept) -> tuple[float, str, int]:
    """Split renewed groups; return a sum in all, what is refused, and the size of a part."""
    ranks = list(range(dist.get_world_size()))
    group = dist.split_group(split_ranks=[ranks])
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    refused = _refused(dist.group.WORLD.split_group, ranks)  # type: ignore[union-attr]
    part: Any = dist.split_group(kept["group"], [[rank] for rank in ranks])
    assert dist.get_process_group_ranks(part) == [dist.get_rank()]
    return value.item(), refused, part.size()


def _refused(call: Callable[..., object], *args: Any, **options: Any) -> str:
    try:
        call(*args, **options)
    except RuntimeError as error:
        return str(error)
    return ""


def look_on(kept: Kept) -> None:
    """Look at the groups in another thread, again and again, until `look_away`."""
    for _ in range(10):
        dist.new_group()
    kept["enough"], kept["looks"], kept["wrong"] = threading.Event(), 0, ""

    def look() -> None:
        while not kept["enough"].is_set():
            try:
                kept["ddp"].groups()
            except Exception:
                kept["wrong"] = traceback.format_exc()
            kept["looks"] += 1

    kept["looker"] = threading.Thread(target=look, daemon=True)
    kept["looker"].start()


def look_away(kept: Kept) -> tuple[int, str]:
    """End the thread; return how often it looked, and what a look raised."""
    kept["enough"].set()
    kept["looker"].join()
    return kept["looks"], kept["wrong"]


def keep_old_backends(kept: Kept) -> None:
    """Pretend that torch has no way to empty a group."""
    from nbdist.backends.torch_private import process_groups

    process_groups._release = lambda: None  # type: ignore[assignment]


def init_and_destroy(kept: Kept) -> None:
    """Destroy groups that a model still holds, again and again."""
    for _ in range(60):
        dist.init_process_group()
        model = DistributedDataParallel(nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        dist.destroy_process_group()
