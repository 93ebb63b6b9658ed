"""Trainings of every kind: cells that define a training on all ranks, and report its state.

Each defines ``make()``, which returns a model, its optimizer and whatever else a step needs,
``held()``, which returns the objects that the notebook trains, and ``step(n, ...)``. Everything is
seeded by the rank and by `n`, so gradients differ between ranks, and a training can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

BASE = """
import copy, hashlib, json, os, signal, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

folder, seed, group, members = {folder!r}, {seed}, None, list(range(world_size))
armed = {{}}

def at(place):
    armed.pop(place, lambda: None)()

def boom():
    raise ValueError("boom")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def tell(name, value):
    with open(f"{{folder}}/new-{{rank}}", "w") as file:
        json.dump(value, file)
    os.replace(f"{{folder}}/new-{{rank}}", f"{{folder}}/{{name}}-{{rank}}")

def stall():
    tell("in", "")
    while True:
        time.sleep(0.01)

class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        at("backward")
        return grad

class Place(nn.Module):
    def forward(self, x):
        at("forward")
        return Passed.apply(x)

class Midway:
    def _init_group(self, parameters, *args, **kwargs):
        if parameters is self.param_groups[-1]:
            at("optimizer")
        return super()._init_group(parameters, *args, **kwargs)

class SGD(Midway, torch.optim.SGD): pass
class Adam(Midway, torch.optim.Adam): pass

def halves(model):
    parameters = list(model.parameters())
    return [{{"params": parameters[:2]}}, {{"params": parameters[2:]}}]

def sgd(model):
    return SGD(halves(model), lr=0.05, momentum=0.9)

def net(norm=nn.Identity):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), Place(), nn.Linear(32, 32), norm(32), nn.Linear(32, 4)
    )

def batch(n):
    drawn = torch.Generator().manual_seed(100_000 * seed + 100 * n + rank)
    return torch.randn(4, 8, generator=drawn), torch.randn(4, 4, generator=drawn)

def loss_of(model, n):
    x, y = batch(n)
    return (model(x).float() - y).pow(2).mean()

def step(n, model, optimizer):
    optimizer.zero_grad()
    at("before")
    loss = loss_of(model, n)
    loss.backward()
    at("between")
    optimizer.step()
    return later(loss)

def later(loss):
    at("later")
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return float(total)

def train(steps, first=0):
    return [step(n, *held()) for n in range(first, first + steps)] if rank in members else []

def bits(value):
    whole = hashlib.sha256()
    def add(value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                whole.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            tensor = (value.to_dense() if value.is_sparse else value).detach().contiguous()
            whole.update(f"{{tensor.shape}}{{tensor.dtype}}".encode() + tensor.numpy().tobytes())
        else:
            whole.update(repr(value).encode())
    add(value)
    return whole.hexdigest()[:12]

def numbers(model):
    return [p.detach().clone() for p in model.parameters()]

def stands():
    model, *more = held()
    return [bits(numbers(model)), *(bits(each.state_dict()) for each in more)]

def say_how_it_stands():
    tell("stands", stands() if rank in members else None)

def twin_of(model, *more):
    twin = make()
    for mine, one in zip(twin, (model, *more)):
        mine.load_state_dict(copy.deepcopy(one.state_dict()))
    return twin

def go_on(steps):
    if rank in members:
        model, optimizer, *_ = held()
        trained = {{id(p) for each in optimizer.param_groups for p in each["params"]}}
        assert trained <= {{id(p) for p in model.parameters()}}, "the optimizer has lost the model"
        before, twin = numbers(model), twin_of(*held())
        losses = train(steps)
        assert all(abs(loss) < 1e6 for loss in losses), losses
        assert not all(map(torch.equal, before, numbers(model))), "nothing was learned"
        if twin is not None:
            for n in range(steps):
                step(n, *twin)
            # Sums of three depend on how the gradients are cut into buckets.
            near = {{}} if world_size == 2 else {{"rtol": 1e-5, "atol": 1e-6}}
            for mine, one in zip(numbers(model), numbers(twin[0])):
                same = torch.allclose(mine, one, **near) if near else torch.equal(mine, one)
                assert same, "one made anew from the same state trains otherwise"
    dist.barrier()

def make_equal():
    if rank in members:
        model, *more = held()
        for each in (model, *more):
            told = [each.state_dict()]
            dist.broadcast_object_list(told, src=members[0], group=group)
            each.load_state_dict(told[0])

NO_TWIN = lambda *_: None

def steps_of(optimizer):
    return sorted({{float(state["step"]) for state in optimizer.state.values()}})

def make_anew():
    global model, optimizer
    model, optimizer = make()
"""

HELD = """
{names} = make()
def held():
    return {names}
"""

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


@dataclass(frozen=True)
class Training:
    """One kind of training."""

    code: str
    names: tuple[str, ...] = ("model", "optimizer")
    """The notebook's names of the objects that must be equal on all ranks, in the order of
    `stands`."""
    own: bool = False
    """Whether the code itself makes and binds the trained objects, and defines `held`."""
    shards: bool = False
    """Whether a dead rank's part of the training is lost."""
    sizes: tuple[int, ...] = (2, 3)

    def cell(self, folder: str, seed: int) -> str:
        """Return the cell that begins the training."""
        held = "" if self.own else HELD.format(names=", ".join(self.names))
        return BASE.format(folder=folder, seed=seed) + self.code + held


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
twin_of = NO_TWIN  # its rest of former gradients is in no state dict
def compressed(model):
    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, power.powerSGD_hook)
"""
FP16 = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
BUILTIN = "model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)"
ACCUMULATE = """
def step(n, model, optimizer):
    optimizer.zero_grad()
    at("before")
    with model.no_sync():
        loss_of(model, n + 50).backward()
    loss = loss_of(model, n)
    loss.backward()
    at("between")
    optimizer.step()
    return later(loss)
"""
NORM = """
def step(n, model, optimizer, plain=step):
    loss = plain(n, model, optimizer)
    for buffer in model.buffers():  # as SyncBatchNorm does, which needs GPUs
        if buffer.is_floating_point():
            dist.all_reduce(buffer, group=group)
            buffer /= len(members)
    return loss
"""
SCALED = """
def make(plain=make):
    return *plain(), torch.amp.GradScaler("cpu", growth_interval=3)
def step(n, model, optimizer, scaler):
    optimizer.zero_grad()
    at("before")
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, n)
    scaler.scale(loss).backward()
    at("between")
    scaler.step(optimizer)
    scaler.update()
    return later(loss)
"""
SCHEDULED = """
def make(plain=make):
    model, optimizer = plain()
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
def step(n, model, optimizer, schedule, plain=step):
    loss = plain(n, model, optimizer)
    schedule.step()
    return loss
"""
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
twin_of, make_equal = NO_TWIN, make_anew
def stands():
    return [bits(numbers(model)), bits(steps_of(optimizer.optim))]
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
def step(n, model, optimizer, average, plain=step):
    loss = plain(n, model, optimizer)
    average.update_parameters(model.module)
    return loss
"""
TWO = """
def make(plain=make):
    return [each for _ in range(2) for each in plain()]
def step(n, model, optimizer, critic, critics, plain=step):
    return plain(n, model, optimizer) + plain(n + 20, critic, critics)
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
twin_of, make_equal = NO_TWIN, make_anew
def make():
    model = net()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    return model, Adam(halves(model), lr=0.01)
def stands():
    return [bits([p.full_tensor() for p in model.parameters()]), bits(steps_of(optimizer))]
def numbers(model):
    return [p.to_local().detach().clone() for p in model.parameters()]
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
twin_of, make_equal = NO_TWIN, make_anew
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
    return [bits(parts), bits(steps_of(optimizer))]
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
    "built-in hook": Training(data_parallel(hook=BUILTIN)),
    "no_sync": Training(data_parallel() + ACCUMULATE),
    "BatchNorm with synced buffers": Training(data_parallel(net="net(nn.BatchNorm1d)") + NORM),
    "scaler": Training(data_parallel() + SCALED, ("model", "optimizer", "scaler")),
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
    "fully sharded": Training(FSDP, shards=True),
    "tensor parallel": Training(
        TENSOR_PARALLEL,
        shards=True,
        sizes=(2,),
    ),
}
