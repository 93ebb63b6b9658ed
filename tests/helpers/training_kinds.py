"""The kinds of training that storms befall; `tests.helpers.trainings` has what all share."""

from __future__ import annotations

from tests.helpers.trainings import Training

DATA_PARALLEL = """
def make():
    model = DDP({net}{options})
    {hook}
    return model, {optimizer}
"""


def data_parallel(
    options: str = "",
    *,
    net: str = "net()",
    hook: str = "",
    optimizer: str = "sgd(model)",
    buckets: str = "bucket_cap_mb=0.002",
) -> str:
    """Return the part of a cell that makes a DDP model, by default with several buckets."""
    options = ", ".join([""] + [each for each in (buckets, options) if each])
    return DATA_PARALLEL.format(options=options, net=net, hook=hook, optimizer=optimizer)


def sharded(options: str = "", adam: str = "") -> str:
    """Return the part of a cell that makes an FSDP2 model, with options for it and for Adam."""
    return FSDP.format(options=options, adam=adam)


UNUSED = """
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.left, self.right = net(), nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return (self.left if x[0, 0] > 0 else self.right)(self.stem(x))
"""
POWER = """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
twin_of, beside = NO_TWIN, two_anew  # its rest of former gradients is in no state dict
def compressed(model):
    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, power.powerSGD_hook)
"""
HALF = "near = {'rtol': 1e-2, 'atol': 1e-3}  # it computes with few digits\n"
FP16 = f"{HALF}from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
BUILTIN = "model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)"
ACCUMULATE = """
def stages(n, model, optimizer):
    optimizer.zero_grad()
    at("before")
    with model.no_sync():
        loss_of(model, n + 50).backward()
    yield
    loss = loss_of(model, n)
    yield loss
    loss.backward()
    at("between")
    yield loss
    optimizer.step()
    yield later(loss)
"""
NORM = """
def stages(n, model, optimizer, plain=stages):
    yield from plain(n, model, optimizer)
    for buffer in model.buffers():  # as SyncBatchNorm does, which needs GPUs
        if buffer.is_floating_point():
            dist.all_reduce(buffer, group=group)
            buffer /= len(members)
"""
SCALED = """
def make(plain=make):
    return *plain(), torch.amp.GradScaler("cpu", growth_interval=3)
def stages(n, model, optimizer, scaler):
    optimizer.zero_grad()
    at("before")
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, n)
    yield loss
    scaler.scale(loss * 1e38 if n % 4 == 3 else loss).backward()  # now and then it is infinite
    at("between")
    yield loss
    {clip}
    yield loss
    scaler.step(optimizer)
    yield loss
    scaler.update()
    yield later(loss)
"""
CLIP = "scaler.unscale_(optimizer); nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
SCHEDULED = """
def make(plain=make):
    model, optimizer = plain()
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
def stages(n, model, optimizer, schedule, plain=stages):
    yield from plain(n, model, optimizer)
    schedule.step()
"""
PLATEAU = """
def make(plain=make):
    model, optimizer = plain()
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=10**6)
    return model, optimizer, schedule
def stages(n, model, optimizer, schedule, plain=stages):
    yield from plain(n, model, optimizer)
    schedule.step(float(batch(n)[1].var()))  # as if it were validated on data of its own
"""
EXPERTS = """
def make(plain=make):
    model, optimizer = plain()
    torch.manual_seed(1000 * seed + rank)
    expert = nn.Linear(8, 4)
    return model, optimizer, expert, torch.optim.Adam(expert.parameters(), lr=0.01)
def stages(n, model, optimizer, expert, tuner, plain=stages):
    yield from plain(n, model, optimizer)
    tuner.zero_grad()
    loss_of(expert, n).backward()
    tuner.step()
"""
COMPILED = """
Place.forward = torch.compiler.disable(Place.forward)
def make(plain=make):
    model, optimizer = plain()
    if seed % 2:
        model.compile(backend="aot_eager")
        return model, optimizer
    return torch.compile(model, backend="aot_eager"), optimizer
"""
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
twin_of, beside, make_equal = NO_TWIN, two_anew, make_anew
def states(model, optimizer):
    return [model.state_dict(), optimizer.optim.state_dict()]
def load():
    make_anew()
def stands():
    counts = sorted({*steps_of(optimizer.optim)})
    return [bits(numbers(model)), bits(counts)]
"""
UNNAMED = """
class Trainer:
    def __init__(self):
        self.model, self.optimizer = make()
trainer = Trainer()
def held():
    return trainer.model, trainer.optimizer
"""
LISTED = """
parts = [*make()]
def held():
    return parts
"""
AVERAGED = """
def make(plain=make):
    model, optimizer = plain()
    return model, optimizer, torch.optim.swa_utils.AveragedModel(model.module)
def stages(n, model, optimizer, average, plain=stages):
    yield from plain(n, model, optimizer)
    average.update_parameters(model.module)
"""
TWO = """
def make(plain=make):
    return [each for _ in range(2) for each in plain()]
def stages(n, model, optimizer, critic, critics, plain=stages):
    yield from plain(n, model, optimizer)
    yield from plain(n + 20, critic, critics)
"""
SPARSE = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.words = net(), nn.Embedding(16, 8, sparse=True)
    def forward(self, x):
        return self.net(self.words((x[:, 0].abs() * 8).long() % 16))
"""
PAIR = """
group, members = dist.new_group([0, 1]), [0, 1]
model, optimizer = make() if rank in members else (None, None)
def held():
    return model, optimizer
"""
FSDP = """
from torch.distributed.fsdp import fully_shard
twin_of, beside, make_equal = NO_TWIN, two_anew, make_anew
def make():
    model = net()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer{options})
    fully_shard(model{options})
    return model, Adam(halves(model), lr=0.01{adam})
def stands():  # each step that a shard has made counts, as only whole tensors can be compared
    steps = steps_of(optimizer)
    return [bits([steps, *(p.full_tensor() for p in model.parameters())]), bits(steps)]
def numbers(model):
    return [p.to_local().detach().clone() for p in model.parameters()]
"""
OFFLOAD = (
    "from torch.distributed.fsdp import CPUOffloadPolicy\n",
    ", offload_policy=CPUOffloadPolicy(pin_memory=False)",  # memory can be pinned only with a GPU
)
MICRO = """
def stages(n, model, optimizer):
    optimizer.zero_grad()
    at("before")
    model.set_requires_gradient_sync(False)
    loss_of(model, n + 50).backward()
    yield
    model.set_requires_gradient_sync(True)
    loss = loss_of(model, n)
    yield loss
    loss.backward()
    at("between")
    yield loss
    optimizer.step()
    yield later(loss)
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
twin_of, beside, make_equal = NO_TWIN, two_anew, make_anew
def make():
    mesh = init_device_mesh("cpu", (world_size,))
    plan = {"0": ColwiseParallel(), "3": RowwiseParallel()}
    model = parallelize_module(net(), mesh, plan)
    return model, Adam(halves(model), lr=0.01)
def batch(n):  # all ranks get the same batch
    drawn = torch.Generator().manual_seed(100_000 * seed + 100 * n)
    return torch.randn(4, 8, generator=drawn), torch.randn(4, 4, generator=drawn)
def whole(p):
    return not isinstance(p, DTensor) or all(each.is_replicate() for each in p.placements)
def local(p):
    return (p.to_local() if isinstance(p, DTensor) else p).detach()
def stands():
    parts = [local(p) for p in model.parameters() if whole(p)]
    steps = steps_of(optimizer)
    return [bits([steps, *parts]), bits(steps)]
def numbers(model):
    return [local(p).clone() for p in model.parameters()]
"""
TRAININGS = {
    "plain": Training(data_parallel()),
    "adam": Training(data_parallel(optimizer="Adam(halves(model), lr=0.01)")),
    "static graph": Training(data_parallel("static_graph=True")),
    "unused parameters": Training(
        UNUSED + data_parallel("find_unused_parameters=True", net="Branches()")
    ),
    "gradients in buckets": Training(data_parallel("gradient_as_bucket_view=True")),
    "fp16 hook": Training(
        FP16
        + data_parallel(hook="model.register_comm_hook(None, default_hooks.fp16_compress_hook)")
    ),
    # With several buckets and gloo, torch itself hangs now and then: the threads that run the
    # hook begin their collectives in any order.
    "PowerSGD": Training(POWER + data_parallel(hook="compressed(model)", buckets="")),
    "built-in hook": Training(HALF + data_parallel(hook=BUILTIN)),
    "no_sync": Training(data_parallel() + ACCUMULATE),
    "BatchNorm with synced buffers": Training(data_parallel(net="net(nn.BatchNorm1d)") + NORM),
    "scaler": Training(
        HALF + data_parallel() + SCALED.format(clip="pass"), ("model", "optimizer", "scaler")
    ),
    "scaler and clipping": Training(
        HALF + data_parallel() + SCALED.format(clip=CLIP), ("model", "optimizer", "scaler")
    ),
    "schedule": Training(data_parallel() + SCHEDULED, ("model", "optimizer", "schedule")),
    "averaged": Training(data_parallel() + AVERAGED, ("model", "optimizer", "average")),
    "two models": Training(data_parallel() + TWO, ("model", "optimizer", "critic", "critics")),
    # Without momentum: it would be sparse, too, and `%dist sync` cannot send sparse tensors yet.
    "sparse gradients": Training(
        SPARSE + data_parallel(net="Words()", buckets="", optimizer="SGD(halves(model), lr=0.05)")
    ),
    "ZeRO": Training(
        ZERO
        + data_parallel(optimizer="ZeroRedundancyOptimizer(model.parameters(), Adam, lr=0.01)"),
        shards=True,
    ),
    "unnamed": Training(
        data_parallel() + UNNAMED, ("trainer.model", "trainer.optimizer"), own=True
    ),
    "in a list": Training(data_parallel() + LISTED, ("parts[0]", "parts[1]"), own=True),
    "subgroup": Training(data_parallel("process_group=group") + PAIR, own=True, sizes=(3,)),
    "fused": Training(
        data_parallel(optimizer="SGD(halves(model), lr=0.05, momentum=0.9, fused=True)")
    ),
    "compiled": Training(data_parallel(buckets="") + COMPILED, unpicklable=True),
    "experts": Training(data_parallel() + EXPERTS, differing=("expert", "tuner")),
    "schedules of their own": Training(data_parallel() + PLATEAU, differing=("schedule",)),
    "fully sharded": Training(sharded(), shards=True),
    "fully sharded, fused": Training(sharded(adam=", fused=True"), shards=True),
    "fully sharded, accumulated": Training(sharded() + MICRO, shards=True),
    "fully sharded, offloaded": Training(OFFLOAD[0] + sharded(OFFLOAD[1]), shards=True),
    "tensor parallel": Training(
        TENSOR_PARALLEL,
        shards=True,
        sizes=(2,),
    ),
}
