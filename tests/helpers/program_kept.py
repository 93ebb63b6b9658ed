"""Programs whose values once differed between the ways to run them, each with the fault.

`tests/helpers/programs.py` reads them: `# %%` begins a cell, `# %% observes` one whose values are compared.
"""

KEPT = {
    "closure shared by two functions": (
        "ranks: two functions that share a variable of a closure got a variable each",
        """
# %%
def make():
    n = 0
    def add():
        nonlocal n
        n += 1
        return n
    def get():
        return n
    return add, get
add, get = make()
add()
# %% observes
print(add(), get())
""",
    ),
    "closure shared, brought in two cells": (
        "ranks: the same, if one of the functions is brought later",
        """
# %%
def make():
    n = [0]
    def add():
        n.append(1)
        return len(n)
    def get():
        return len(n)
    return add, get
add, get = make()
# %% observes
print(get.__name__)
# %% observes
print(add(), get())
""",
    ),
    "obj class reassigned": (
        "ranks: an object whose class was changed kept its old class",
        """
# %%
class A:
    def v(self): return 1
class B:
    def v(self): return 2
a = A()
# %% observes
print(a.v())
# %%
a.__class__ = B
# %% observes
print(a.v(), type(a) is B)
""",
    ),
    "own imports": (
        "script: names of the preamble replaced names that the notebook imports",
        """
# %%
from itertools import chain as _name
from string import digits as _alone
# %% observes
print(len(list(_name([1], [2]))), _alone)
""",
    ),
    "del": (
        "both: a name that a cell only deletes was missing",
        """
# %%
width = 3
# %% observes
del width
print("width" in globals())
""",
    ),
    "slots": (
        "ranks: slots became ordinary attributes",
        """
# %%
class P:
    __slots__ = ("x", "y")
    def __init__(self, x): self.x = x; self.y = 2
p = P(1)
# %% observes
print(sorted(n for n in vars(P) if n[0] != "_"), p.x, p.y, hasattr(p, "__dict__"))
""",
    ),
    "dataclass slots": (
        "ranks: so did those of a dataclass",
        """
# %%
from dataclasses import dataclass
@dataclass(slots=True)
class P:
    x: int = 1
    def f(self): return self.x
p = P(3)
# %% observes
print(p, p.f(), P(), hasattr(p, "__dict__"))
# %%
p.x = 9
# %% observes
print(p.x)
""",
    ),
    "typing named tuple": (
        "ranks: could not be brought",
        """
# %%
from typing import NamedTuple
class Pair(NamedTuple):
    x: int
    y: int = 9
pair = Pair(1)
# %% observes
print(Pair(2), pair, isinstance(pair, Pair), pair._asdict())
""",
    ),
    "lru cache of a method": (
        "ranks: a class with caches could not be brought",
        """
# %%
from functools import lru_cache, cached_property
class Net:
    def __init__(self): self.n = 4
    @lru_cache(maxsize=None)
    def f(self, x): return x + self.n
    @cached_property
    def g(self): return self.n + 1
net = Net()
net.g
# %% observes
print(net.f(1), net.g)
""",
    ),
    "array edited small": (
        "ranks: an array's change in place was not noticed; now a note says so",
        """
# %%
import numpy as np
weights = np.zeros(3)
def total(): return float(weights.sum())
# %% observes
print(total())
# %%
weights[1] = 5
# %% observes
print(total())
""",
    ),
    "array edited large": (
        "ranks: neither was that of a large array",
        """
# %%
import numpy as np
weights = np.zeros(100000)
def total(): return float(weights.sum())
# %% observes
print(total())
# %%
weights[1] = 5
# %% observes
print(total())
""",
    ),
    "array in a dict": (
        "ranks: neither was that of an array in a dict",
        """
# %%
import numpy as np
data = {"x": np.zeros(3), "y": [1]}
# %% observes
print(data["x"].sum())
# %%
data["x"][0] = 4
data["y"].append(2)
# %% observes
print(data["x"].sum(), data["y"])
""",
    ),
    "big list edited": (
        "ranks: neither was that of a long list; now a note says so",
        """
# %%
items = list(range(50000))
# %% observes
print(items[0])
# %%
items[0] = 99
# %% observes
print(items[0])
""",
    ),
    "rng": (
        "ranks: neither was that of a random generator",
        """
# %%
import random
r = random.Random(3)
# %% observes
print(r.getstate()[1][0])
# %%
r.random()
# %% observes
print(r.getstate()[1][-1])
""",
    ),
    "counter": (
        "ranks: neither was that of a Counter",
        """
# %%
from collections import Counter
seen = Counter()
def note(x): seen[x] += 1
note("a")
# %% observes
print(seen)
# %%
note("a"); note("b")
# %% observes
print(seen, seen["b"])
""",
    ),
    "function attribute edited": (
        "ranks: neither was a new value of a function's attribute",
        """
# %%
def f(x): return x * f.scale
f.scale = 2
# %% observes
print(f(1))
# %%
f.scale = 7
# %% observes
print(f(1))
""",
    ),
    "lru cache stays usable": (
        "ranks: a cached function could not be brought",
        """
# %%
from functools import lru_cache
n = 1
@lru_cache
def f(x): return x + n
# %% observes
print(f(1))
""",
    ),
    "told of subclasses": (
        "script: an attribute set with others in one statement got the value of the class's body",
        """
# %%
class meter:
    count, kinds = 24, []
    def __init_subclass__(cls, **more):
        meter.count += 1
class Submeter(meter):
    pass
# %% observes
print(meter.count)
""",
    ),
    "a default that a call computed": (
        "script: a value was computed again, from names that had changed since",
        """
# %%
n: int = 5
class B:
    def value(self):
        return n
def h(x, *, k=B().value() + 5):
    return x + k + 2
n += 1
# %% observes
print(h(4))
""",
    ),
    "a dataclass that was another one": (
        "script: an internal error",
        """
# %%
from dataclasses import dataclass, field
@dataclass
class Config:
    lr: int = 5
    layers: list = field(default_factory=lambda: [3, 2])
# %%
f = lambda x: x + Config().lr
# %%
@dataclass
class Config:
    lr: int = 4
    layers: tuple = (3,)
    def total(self):
        return 1
# %% observes
print(f(1))
""",
    ),
    "an object with attributes of its own making": (
        "script: an internal error, as reading an attribute raises an error",
        """
# %%
class AttrDict(dict):
    __getattr__ = dict.__getitem__
options = AttrDict(lr=4, sub=AttrDict(x=1))
class Any:
    def __getattr__(self, name):
        return name
anything = Any()
def f(x):
    return x + options.sub.x + len(anything.abc)
# %% observes
print(f(1), options.lr, anything.lr)
""",
    ),
    "a dataclass that was another one, with a plain field of the same name": (
        "script: an internal error",
        """
# %%
from dataclasses import dataclass, field
@dataclass
class Config:
    layers: list = field(default_factory=lambda: [0, 2])
# %%
def stream(x):
    for i in range(x):
        yield Config(layers=i).layers
# %%
@dataclass(frozen=True)
class Config:
    lr: int = field(default=0)
    layers: tuple = (1, 2)
# %% observes
print(sum(stream(3)), Config())
""",
    ),
    "a global that an object reads while it is loaded": (
        "script: a NameError, as both values were in one file",
        """
# %%
class AttrDict(dict):
    __getattr__ = dict.__getitem__
options = AttrDict(lr=1, sub=AttrDict(x=1))
class Counting:
    def __getstate__(self):
        return {}
    def __setstate__(self, state):
        self.cache = options.sub.x + 2
counting = Counting()
# %% observes
print(counting.cache if hasattr(counting, 'cache') else options.sub.x + 2, options.lr)
""",
    ),
    "an exception whose class takes something else than its message": (
        "both: its class was called with the message, and made a message of that",
        """
# %%
class Wrong(Exception):
    def __init__(self, n):
        super().__init__(f"no {n}")
        self.n = n
class Two(ValueError):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b
wrong, two = Wrong(2), Two(3, 4)
# %% observes
print(str(wrong), wrong.n, wrong.args, str(two), two.b, isinstance(wrong, Wrong))
""",
    ),
    "slots of a class that a cell has changed": (
        "script: they became ordinary attributes",
        """
# %%
class Model:
    __slots__ = ("n",)
    def __init__(self, n):
        self.n = n
    def value(self):
        return self.n
def value(self):
    return self.n + 5
Model.value = value
model = Model(3)
# %% observes
print(sorted(n for n in vars(Model) if n[0] != "_"), hasattr(model, "__dict__"), model.value())
""",
    ),
    "a lambda with a name that something else holds": (
        "script: the other one held a copy of it",
        """
# %%
k = 3
f = lambda x: x + k
# %%
box = (f,)
table = {"f": f, "g": lambda x: f(x)}
# %% observes
print(box[0] is f, table["f"] is f, table["g"](1), f(1))
""",
    ),
    "a name that a function of the ranks reads, which a class of the notebook calls": (
        "ranks: the function read the old value",
        """
# %%
n = 3
# %% observes
def read(x):
    return x + n
# %%
class Net:
    def value(self):
        return read(0)
n = 0
# %% observes
print(Net().value())
""",
    ),
    "an object that both ends have changed in the same way, and what holds it": (
        "ranks: what held it got a copy",
        """
# %%
class Net:
    def __init__(self, n):
        self.n = n
net = Net(6)
# %% observes
print(net.n)
# %%
holder = [net, 0]
# %% observes
net.n = 8
print(net.n)
# %% observes
net.n = 1
print(holder[0].n, holder[0] is net)
""",
    ),
    "parameters that are read by their optimizer": (
        "ranks: no word that the notebook had changed them",
        """
# %%
import torch
net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.fill_(1)
opt = torch.optim.SGD(net.parameters(), lr=1.0)
# %% observes
print(int(opt.param_groups[0]["params"][0].item()))
# %%
net.weight.data.fill_(2)
# %% observes
print(int(opt.param_groups[0]["params"][0].item()))
""",
    ),
    "an attribute of a class that is the same in its base": (
        "ranks, script: it was the base's",
        """
# %%
class Base:
    lr = 3
class Net(Base):
    lr = Base.lr
# %% observes
Base.lr = 6
print(Net.lr)
""",
    ),
    "a name for what a cell has made, in both ends": (
        "ranks: it was a copy",
        """
# %%
class Net:
    n = 3
# %% observes
net = Net()
print(net.n)
# %%
other = [net]
# %% observes
print(other[0] is net)
""",
    ),
    "a class that was edited before its name was bound to another one": (
        "ranks: the old object's class was not edited",
        """
# %%
class Net:
    lr = 9
net = Net()
# %% observes
print(net.lr)
# %%
Net.lr = 6
class Net:
    lr = 1
# %% observes
print(net.lr)
# %%
type(net).lr = 7
# %% observes
print(net.lr, Net.lr)
""",
    ),
    "a name that a function reads, which a function of the ranks calls": (
        "ranks: the function read the old value",
        """
# %%
log = [1]
def length():
    return len(log)
# %% observes
own = lambda: length()
print(own())
# %%
log = [8, 2]
# %% observes
print(own())
""",
    ),
    "an array that lies in the memory of a tensor": (
        "script: it was a copy",
        """
# %%
import torch, numpy as np
one = torch.arange(6)
of_one = one[1:].numpy()[:2]
array = np.arange(6.0)
over = torch.from_numpy(array)
part = array[2:4]
# %% observes
one[...] = 8
over[2] = 9
part[1] = 7
print(of_one.tolist(), array.tolist(), over.tolist(), part.tolist())
""",
    ),
    "gradients of a model that has another name, and that both ends have changed": (
        "ranks: they had none, without a word",
        """
# %%
import torch
net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.fill_(6)
# %% observes
net.weight.data.fill_(200)
print(net.weight.grad is None)
# %%
head = torch.nn.ModuleList([net])[0]
net(torch.ones(1) * 3).backward()
# %% observes
print(head.weight.grad is None)
""",
    ),
    "settings in a partial that both ends have changed": (
        "ranks: the partial had theirs, without a word",
        """
# %%
from functools import partial
stats = {"lr": 0, "width": 4}
trainer = partial(lambda held: sum(held.values()), stats)
# %% observes
stats["lr"] = 100
print(trainer())
# %%
stats["lr"] = 200
# %% observes
print(trainer())
""",
    ),
    "a list of a class of one's own that both ends have changed": (
        "ranks: it was theirs, without a word",
        """
# %%
class Rows(list):
    pass
rows = Rows([1])
# %% observes
rows.append(2)
print(sum(rows))
# %%
rows.append(3)
# %% observes
print(sum(rows))
""",
    ),
    "gradients of a model that an object holds": (
        "ranks: they had none, without a word",
        """
# %%
import torch
class Holder:
    def __init__(self, held):
        self.held = held
layer = torch.nn.Linear(1, 1, bias=False)
layer.weight.data.fill_(6)
holder = Holder(layer)
weight = torch.ones(1, requires_grad=True)
# %% observes
print(holder.held.weight.grad, weight.grad)
# %%
layer(torch.ones(1) * 3).backward()
(2 * weight).sum().backward()
# %% observes
print(holder.held.weight.grad, weight.grad)
""",
    ),
    "gradients of a model that only a function's default value holds": (
        "ranks: under its new name it had none, without a word",
        """
# %%
import torch
layer = torch.nn.Linear(1, 1, bias=False)
layer.weight.data.fill_(6)
def bundle(held=layer):
    return held.weight.item()
# %% observes
print(bundle())
# %%
head, layer = layer, None
head(torch.ones(1) * 3).backward()
# %% observes
print(head.weight.grad)
""",
    ),
    "a value that the class of a function's default value needs": (
        "script: the list in it was another one, as the value was loaded earlier",
        """
# %%
items = [0, 2]
class Total:
    def __init__(self, held):
        self.held = held
    def __call__(self):
        return sum(self.held)
total = Total(items)
class Scaled:
    def __init__(self, n):
        self.n = n
    def value(self):
        return self.n * total()
three, four = Scaled(3), Scaled(4)
four.n = 600
def bundle(held=four):
    return held.n
# %% observes
items.append(800)
print(three.value())
print(bundle())
""",
    ),
    "what the methods of an object read that a cell has made": (
        "ranks: they had the value and the class from before, without a word",
        """
# %%
rate = 1
class Scaled:
    scale = 0
    def value(self):
        return Scaled.scale, rate
# %% observes
own = Scaled()
print(own.value())
# %%
rate = 5
# %% observes
print(own.value())
# %%
class Scaled:
    scale = 6
# %% observes
print(own.value())
""",
    ),
    "a class edited in the same way at both ends": (
        "ranks: what its methods read was no longer followed once a cell had made an object of it",
        """
# %%
layers = [3, 2]
# %%
dataset = (lambda inside: lambda: sum(inside[0]))([layers])
class Net:
    made = 0
    def __init__(self, n):
        Net.made += 1
        self.n = n
    def value(self):
        return self.n + dataset()
# %% observes
own = Net(max(layers))
# %% observes
def twice(x):
    return x + x
def check():
    return own.scale
# %%
layers.insert(0, twice(7))
# %% observes
print(Net(1).value())
""",
    ),
    "a holder that is found edited only behind new code": (
        "ranks: it was thought to be there as it is, and what it holds stayed old",
        """
# %%
class B:
    def __init__(self, n):
        self.n = n
b = B(3)
box = [b]
class Model:
    scale = 0
    def value(self, x=1):
        return box[0].n + x
a = Model()
# %% observes
print(Model.scale)
print(box[0].n)
# %%
b.n += 3
# %% observes
print(a.value())
""",
    ),
    "a lock that new code needs, and that a class behind an object read before": (
        "ranks: it was left out without a word, as what such objects read may be, and f saw the 5",
        """
# %%
lock = 5
class Net:
    def value(self): return lock
# %% observes
own = Net()
print(own.value())
# %%
import threading
lock = threading.Lock()
def f(): return isinstance(lock, int)
# %% observes
print(own is None, f())
""",
    ),
    "an optimizer that is brought before its model": (
        "ranks: the model that came later was a copy, which the optimizer did not train",
        """
# %%
import torch
net = torch.nn.Linear(1, 1, bias=False)
with torch.no_grad():
    net.weight.fill_(9)
opt = torch.optim.SGD(net.parameters(), lr=1.0)
# %% observes
print(int(opt.param_groups[0]['params'][0].item()))
# %% observes
net.weight.data.fill_(600)
print(int(opt.param_groups[0]['params'][0].item()))
""",
    ),
    "new code inside of a named part": (
        "ranks: what code reads that was put into a part of an object was not followed",
        """
# %%
k = 1; cbs = []
class Trainer:
    def __init__(self, cbs): self.cbs = cbs
    def run(self): return [c() for c in self.cbs]
trainer = Trainer(cbs)
# %% observes
print(trainer.run())
# %%
cbs.append(lambda: k)
# %% observes
print(trainer.run())
# %%
k = 5
# %% observes
print(trainer.run())
""",
    ),
    "new code inside of named parts of parts": (
        "ranks: the same, deeper",
        """
# %%
k = 1
class Net: pass
net = Net()
box = {"n": net}
top = [box]
# %% observes
print(len(top))
# %%
net.fn = lambda: k
# %% observes
print(top[0]["n"].fn())
# %%
k = 2
# %% observes
print(top[0]["n"].fn())
# %%
class More:
    def __call__(self): return k + 1
box["m"] = More()
# %% observes
print(top[0]["m"]())
# %%
k = 10
# %% observes
print(top[0]["m"]())
""",
    ),
    "names that only seem bound": (
        "ranks: names that a cell binds on some ways only were old on the others",
        """
# %%
from contextlib import suppress
k = m = n = o = p = q = r = s = t = 1; debug = 0; xs = [1]
# %% observes
print(k, m, n, o, p, q, r, s, t)
# %%
k = m = n = o = p = q = r = s = t = 2
# %% observes
with suppress(ValueError):
    k = int("x")
for x in xs: break
else: m = 7
if debug and (n := 7): pass
assert True or (o := 3)
assert True, (p := 3)
(q := 7) if debug else 0
5 < 3 < (r := 9)
while debug == 0:
    break
else: t = 8
print(k, m, n, o, p, q, r, t)
""",
    ),
    "a name that a finally clause reads": (
        "ranks: the same, if the block has failed before it binds the name",
        """
# %%
s = 1
# %% observes
print(s)
# %%
s = 2
# %% observes
try:
    try: s = int("x")
    finally: print(s)
except ValueError: pass
""",
    ),
    "names in strings that code evaluates": (
        "ranks: what only such strings read was old, or not there",
        """
# %%
import pandas as pd
df = pd.DataFrame({"a": [1, 2, 3]})
thr = 1; k = 1; unused = 5
def rows(): return len(df.query("a > @thr"))
def value(): return eval("k + 1")
# %% observes
print(len(df.query("a > @thr")), rows(), eval("k"), value())
# %%
thr = 2; k = 5
# %% observes
print(rows(), value())
# %%
thr = 3; k = 6
# %% observes
print(len(df.query("a > @thr")), eval("k"))
""",
    ),
    "an object with more in it than is small": (
        "ranks: above 64 kB nothing of it was compared, and the old scale was used",
        """
# %%
class DS:
    def __init__(self): self.items = [str(i) for i in range(20000)]; self.scale = 1
class Huge:
    def __init__(self): self.items = [str(i) for i in range(400000)]; self.scale = 1
ds, huge = DS(), Huge()
table = list(range(300000))
def f(): return len(table), ds.scale, huge.scale
# %% observes
print(ds.scale, f())
# %%
ds.scale = 5
# %% observes
print(ds.scale)
# %%
huge.scale = 6
# %% observes
print(huge.scale)
# %%
data = {"train": [1], "test": list(range(400000))}
# %% observes
print(data["train"])
# %%
data["train"].append(2)
# %% observes
print(data["train"])
""",
    ),
    "classes with large tables, and with what is no data": (
        "ranks: only functions and plain data of a class were compared",
        """
# %%
import math, torch, numpy as np
class Inner: x = 1
class Other: x = 2
def base():
    class Base:
        z = 1
    return Base
class Config(base()):
    vocab = [str(i) for i in range(20000)]
    class optim:
        lr = 1
    act = math.floor
    loss = torch.nn.L1Loss()
    w = np.array([1, 2])
    Inner = Inner
    def v(self): return 1
# %% observes
print(Config.optim.lr, Config.act(1.5), type(Config.loss).__name__, Config.w.tolist(), Config().v(), Config.z)
# %%
Config.optim.lr = 2
# %% observes
print(Config.optim.lr)
# %%
Config.act = math.ceil
# %% observes
print(Config.act(1.5))
# %%
Config.loss = torch.nn.MSELoss()
# %% observes
print(type(Config.loss).__name__)
# %%
Config.w[0] = 9
# %% observes
print(Config.w.tolist())
# %%
Config.Inner = Other
# %% observes
print(Config.Inner.x)
# %%
Config.v = lambda self: 2
# %% observes
print(Config().v())
# %%
Config.__bases__[0].z = 3
# %% observes
print(Config.z)
# %%
class Late(Config.__bases__[0]):
    late = 4
Config.__bases__ = (Late,)
# %% observes
print(Config.late)
""",
    ),
    "attributes of models": (
        "ranks: only numbers and texts that a model had had were compared",
        """
# %%
import torch
class Cfg:
    k = 1
class Net(torch.nn.Module):
    scale = 1
    def __init__(self, cfg):
        super().__init__(); self.cfg = cfg; self.act = torch.relu; self.dims = [1, 2]
nets = [Net(Cfg()) for _ in range(4)]; a, b, c, d = nets
# %% observes
print(a.scale, b.cfg.k, c.act(torch.tensor(-1.0)).item(), d.dims)
# %%
a.scale = 5
# %% observes
print(a.scale)
# %%
b.cfg.k = 7
# %% observes
print(b.cfg.k)
# %%
c.act = torch.abs
# %% observes
print(c.act(torch.tensor(-1.0)).item())
# %%
d.dims.append(3)
# %% observes
print(d.dims)
""",
    ),
    "libraries' objects in others": (
        "ranks: each was only known to be the same object",
        """
# %%
import torch, pandas as pd
from torch.utils.data import DataLoader, Subset, TensorDataset
from typing import NamedTuple
class P(NamedTuple):
    xs: list
class Trainer:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.5))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
class DS:
    s = 1
    def __len__(self): return 2
    def __getitem__(self, i): return self.s
    def __getstate__(self): return dict(vars(self))
ds = DS()
ds.s = 2
X = torch.ones(2)
ts = [Trainer() for _ in range(3)]; t, u, v = ts
loader, other, third = DataLoader(Subset(ds, [0, 1])), DataLoader(TensorDataset(X)), DataLoader([1])
frames = {"a": pd.DataFrame({"a": [1, 2]})}
p = P([1])
# %% observes
print(t.opt.param_groups[0]["lr"], u.net.training, v.net[1].p, [x.item() for x in loader], next(iter(other)))
print(list(frames["a"].columns), p.xs, next(iter(third)))
# %%
t.opt.param_groups[0]["lr"] = 0.5
# %% observes
print(t.opt.param_groups[0]["lr"])
# %%
u.net.eval()
# %% observes
print(u.net.training)
# %%
v.net[1] = torch.nn.Dropout(0.1)
# %% observes
print(v.net[1].p)
# %%
ds.s = 3
# %% observes
print([x.item() for x in loader])
# %%
X += 1
# %% observes
print(next(iter(other)))
# %%
third.collate_fn = list
# %% observes
print(next(iter(third)))
# %%
frames["a"]["b"] = 0
# %% observes
print(list(frames["a"].columns))
# %%
p.xs.append(2)
# %% observes
print(p.xs)
""",
    ),
    "shapes, and what a defaultdict makes": (
        "ranks: only the bytes of arrays and the items of dicts counted",
        """
# %%
import numpy as np, torch
from collections import defaultdict
a = np.arange(4)
b = np.zeros(2, [("x", "i4")])
m = torch.nn.Linear(4, 1, bias=False)
d = defaultdict(int)
# %% observes
print(a.shape, b.dtype.names, m.weight.shape, d[0])
# %%
a.shape = (2, 2)
# %% observes
print(a.shape)
# %%
b.dtype.names = ("y",)
# %% observes
print(b.dtype.names)
# %%
m.weight.data = m.weight.data.view(4)
# %% observes
print(m.weight.shape)
# %%
d.default_factory = list
# %% observes
print(d["b"])
""",
    ),
    "a dict that is its own attributes": (
        "ranks: its items and its attributes were two dicts",
        """
# %%
class Conf(dict):
    def __init__(self, **given):
        super().__init__(**given)
        self.__dict__ = self
conf = Conf(lr=1)
other = Conf(lr=1)
# %% observes
conf.new = 3
print(conf, other)
# %% observes
conf["lr"] = 4
print(conf.lr)
# %%
other.lr = 7
# %% observes
print(other["lr"], other.lr)
""",
    ),
    "attributes of kinds that others define": (
        "ranks: only those of known types were compared in classes and functions",
        """
# %%
import functools, types
import numpy as np, torch
class Conf:
    act = np.tanh
def counted(f):
    @functools.wraps(f)
    def inner(x):
        return f(x) * inner.k
    inner.k = 1
    return inner
double = counted(torch.sum)
class Box:
    pass
def step(self):
    return 1
box = Box()
box.step = types.MethodType(step, box)
# %% observes
print(Conf.act.__name__, double(torch.ones(2)).item(), box.step())
# %%
Conf.act = np.cos
double.k = 3
def step(self):
    return 2
box.step = types.MethodType(step, box)
# %% observes
print(Conf.act.__name__)
# %% observes
print(double(torch.ones(2)).item())
# %% observes
print(box.step())
""",
    ),
    "an attribute of a class with the name of what it reads": (
        "script: the class statement read the present list, not the notebook's of then",
        """
# %%
items = [1, 2]
class Net:
    scale = max(items)
    items = [1, max(items)]
# %%
items.append(9)
# %% observes
print(Net.items, Net.scale)
""",
    ),
    "edits of both ends that the notebook takes back": (
        "ranks: an object that was back in the state that was sent seemed not to have changed",
        """
# %%
class Conf:
    lr = 1
items, conf = [1], [Conf()]
# %% observes
items.append(2)
Conf.lr = 2
print(items, conf[0].lr)
# %%
items.pop()
Conf.lr = 1
# %% observes
print(items)
# %% observes
print(conf[0].lr)
""",
    ),
    "gradients of both ends that the notebook takes away": (
        "ranks: a model without gradients, as it was sent, seemed not to have changed",
        """
# %%
import torch
head = torch.nn.Linear(1, 1, bias=False)
with torch.no_grad():
    head.weight.fill_(0)
# %% observes
head.weight.grad = head.weight.detach() * 0 + 100
print(int(head.weight.item()))
# %%
head.zero_grad()
# %% observes
print(int(0 if head.weight.grad is None else head.weight.grad.item()))
""",
    ),
    "a class with the notebook's own metaclass": (
        "script: what the notebook's functions computed for it was taken as made by a library",
        """
# %%
def b(x): return 17
def c(x): return 14
class Meta(type):
    pass
class Net(metaclass=Meta):
    k = b(2)
# %%
class Net(metaclass=Meta):
    k = c(2) + 0
# %% observes
print(Net.k)
# %%
calls = []
def count(x):
    calls.append(x)
    return len(calls)
class Net(metaclass=Meta):
    k = count(2)
# %%
count(3)
# %% observes
print(Net.k)
""",
    ),
    "functions whose own name is another one": (
        "ranks: a lambda in a list that was brought before its name was a copy of it",
        """
# %%
f = lambda x: x + 1
def make():
    def inner():
        return 1
    return inner
g = make()
state, table = [f], {"g": g}
def call(h=f):
    return h
# %% observes
print(state[0](1), table["g"](), call()(2))
# %% observes
print(state[0] is f, table["g"] is g, call() is f)
""",
    ),
}
