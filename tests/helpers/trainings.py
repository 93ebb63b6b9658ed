"""A training in a storm: the cell that defines it on all ranks, and what reports its state.

Each kind (`tests.helpers.training_kinds`) has ``make()``, which returns a model, its optimizer and
whatever else a step needs, ``held()``, which returns the objects that the notebook trains, and
``stages(n, ...)``, a step that pauses where a notebook's step may go on in another cell. Everything
is seeded by the rank and by `n`: gradients differ between ranks, and a training can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

BASE = """
import copy, hashlib, json, os, re, signal, time
from functools import partial
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

def stages(n, model, optimizer):
    optimizer.zero_grad()
    at("before")
    loss = loss_of(model, n)
    yield loss
    loss.backward()
    at("between")
    yield loss
    optimizer.step()
    yield later(loss)

def step(n, *held):
    *_, last = stages(n, *held)
    return last

def later(loss):
    at("later")
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return float(total)

def train(steps, first=0):
    return [step(n, *held()) for n in range(first, first + steps)] if rank in members else []

def flat(value):
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield str(key)
            yield from flat(value[key])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from flat(each)
    elif isinstance(value, float):
        yield torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, torch.Tensor):
        own = getattr(value, "to_local", lambda: value)()
        yield (own.to_dense() if own.is_sparse else own).detach().contiguous()
    else:
        yield repr(value)

def bits(value):
    whole = hashlib.sha256()
    for each in flat(value):
        if isinstance(each, torch.Tensor):
            whole.update(f"{{each.shape}}{{each.dtype}}".encode() + each.numpy().tobytes())
        else:
            whole.update(each.encode())
    return whole.hexdigest()[:12]

near = {{"rtol": 1e-5, "atol": 1e-6}}

def same(mine, one):
    if isinstance(mine, str) or isinstance(one, str):
        return mine == one
    # Sums of three depend on how the gradients are cut into buckets.
    alike = torch.equal if world_size == 2 else partial(torch.allclose, **near)
    return mine.shape == one.shape and alike(mine, one)

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

def beside():
    return twin_of(*held())

def states(*held):
    return [each.state_dict() for each in held]

def must_be_as(twin, steps):
    for n in steps:
        step(n, *twin)
    for place, (mine, one) in enumerate(zip(states(*held()), states(*twin))):
        mine, one = list(flat(mine)), list(flat(one))
        assert len(mine) == len(one) and all(map(same, mine, one)), (
            f"object {{place}} is not as in a training without faults"
        )

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
            must_be_as(twin, range(steps))
    dist.barrier()

def save():
    global saved
    saved = copy.deepcopy(states(*held())) if rank in members else None

def load():
    for each, state in zip(held(), copy.deepcopy(saved)):
        each.load_state_dict(state)

def make_equal(count):
    if rank in members:
        for each in held()[:count]:
            told = [each.state_dict()]
            dist.broadcast_object_list(told, src=members[0], group=group)
            each.load_state_dict(told[0])

NO_TWIN = lambda *_: None

def steps_of(optimizer):
    states = (optimizer.state[p] for each in optimizer.param_groups for p in each["params"])
    return [float(state.get("step", 0)) for state in states]

def make_anew(*_):
    global model, optimizer
    model, optimizer = make()

def two_anew():
    make_anew()
    twin = make()
    for n in range(3):
        step(n, *held())
        step(n, *twin)
    return twin
"""

HELD = """
{names} = make()
def held():
    return {names}
"""


@dataclass(frozen=True)
class Training:
    """One kind of training."""

    code: str
    names: tuple[str, ...] = ("model", "optimizer")
    """The notebook's names of the objects that must be equal on all ranks, in the order of
    `stands`."""
    differing: tuple[str, ...] = ()
    """The names of further objects, which differ between ranks on purpose."""
    own: bool = False
    """Whether the code itself makes and binds the trained objects, and defines `held`."""
    shards: bool = False
    """Whether a dead rank's part of the training is lost."""
    unpicklable: bool = False
    """Whether torch cannot pickle the model, so a new rank may lack it."""
    sizes: tuple[int, ...] = (2, 3)

    def cell(self, folder: str, seed: int) -> str:
        """Return the cell that begins the training."""
        names = ", ".join(self.names + self.differing)
        held = "" if self.own else HELD.format(names=names)
        return BASE.format(folder=folder, seed=seed) + self.code + held + "\nsave()\n"
