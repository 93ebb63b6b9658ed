"""What counts as a change in place of a value that was brought, and what is mere use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nbdist.rank.values.contents import contents
from nbdist.rank.values.small_contents import Recorded

if TYPE_CHECKING:
    from pathlib import Path

MADE = """
import copy, enum, functools, logging, math, random
from argparse import Namespace
from collections import OrderedDict, defaultdict
from typing import NamedTuple
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
class Box:
    def __init__(self, **given): vars(self).update(given)
class Net(nn.Module):
    scale = 1
    def __init__(self, **given):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        vars(self).update(given)
    def forward(self, x):
        self.seen, self.cache = x, {len(x): x}
        return self.layer(x)
class Data(Dataset):
    def __init__(self): self.file, self.scale, self._cache = None, 1, {}
    def __len__(self): return 4
    def __getitem__(self, i):
        self.file = self.file or logging.StreamHandler()
        self._cache[i] = i
        return i * self.scale
    def __getstate__(self): return {**vars(self), "file": None}
words = [str(n) for n in range(20_000)]
more = [str(n) for n in range(300_000)]
"""
EDITS = {
    "a large object": ("x = Box(words=words, scale=1)", "x.scale = 5"),
    "a very large object": ("x = Box(words=more, scale=1)", "x.scale = 5"),
    "a long text": ("x = Box(text='a' * 120_000)", "x.text = 'b' * 120_000"),
    "a very long text": ("x = Box(text='a' * 2_000_000)", "x.text = 'b' * 2_000_000"),
    "settings with a list": ("x = Namespace(lr=1, words=words)", "x.lr = 2"),
    "a function with a table": ("x = lambda lr, words=more: lr\nx.lr = 1", "x.lr = 2"),
    "many tensors": ("x = Box(all=[torch.ones(1) for _ in range(400)], k=1)", "x.k = 2"),
    "very many tensors": ("x = Box(all=[torch.ones(1) for _ in range(4000)], k=1)", "x.k = 2"),
    "a short list beside a long one": ("x = {'a': [1], 'b': more}", "x['a'].append(2)"),
    "a class with a table": ("class x:\n words = more\n lr = 1", "x.lr = 2"),
    "its methods": ("class x:\n words = more", "x.run = lambda self: 1"),
    "a class in a class": ("class x:\n class inner:\n  lr = 1", "x.inner.lr = 2"),
    "a class's function": ("class x: act = math.floor", "x.act = math.ceil"),
    "a class's layer": ("class x: act = nn.ReLU()", "x.act = nn.GELU()"),
    "a class's array": ("class x: w = np.ones(2)", "x.w[0] = 3"),
    "a class's bases": ("class A: pass\nclass B(A): pass\nclass x(A): pass", "x.__bases__ = (B,)"),
    "a model's own object": ("c = Box(k=1)\nx = Net(cfg=c)", "c.k = 2"),
    "a model's new attribute": ("x = Net()", "x.scale = 2"),
    "a model's function": ("x = Net(act=torch.relu)", "x.act = torch.abs"),
    "a model's list": ("x = Net(dims=[1])", "x.dims.append(2)"),
    "a model's flag": ("x = Net(flag=1)", "x.flag = True"),
    "an optimizer inside": (
        "x = Box(opt=torch.optim.SGD([torch.ones(1)], 0.1))",
        "x.opt.param_groups[0]['lr'] = 0.5",
    ),
    "a model's mode inside": ("net = Net()\nx = Box(net=net)", "net.eval()"),
    "a layer inside": ("x = {'net': nn.Sequential(nn.ReLU())}", "x['net'][0] = nn.GELU()"),
    "a dataset with a state": ("x = {'a': Data()}", "x['a'].scale = 2"),
    "a loader's dataset": ("d = Data()\nx = DataLoader(Subset(d, [0]))", "d.scale = 2"),
    "a loader's tensor": ("t = torch.ones(2)\nx = DataLoader(TensorDataset(t))", "t += 1"),
    "a loader's function": ("x = DataLoader([1])", "x.collate_fn = list"),
    "a named tuple's list": (
        "class P(NamedTuple):\n xs: list\nx = P([1])",
        "x.xs.append(2)",
    ),
    "a dict of a class": ("class D(dict):\n pass\nx = Box(d=D(a=1))", "x.d['a'] = 2"),
    "slots with a state": (
        "class S:\n __slots__ = ('a',)\n def __getstate__(self): return self.a\nx = S(); x.a = 1",
        "x.a = 2",
    ),
    "an array's shape": ("x = np.arange(4)", "x.shape = (2, 2)"),
    "an array's names": ("x = np.zeros(2, [('a', 'i4')])", "x.dtype.names = ('b',)"),
    "a tensor's shape": ("x = nn.Linear(2, 1)", "x.weight.data = x.weight.data.view(2)"),
    "what a defaultdict makes": ("x = defaultdict(int)", "x.default_factory = list"),
    "a class's ufunc": ("class x: act = np.tanh", "x.act = np.cos"),
    "a model's distribution": (
        "normal = torch.distributions.Normal\nx = Net(prior=normal(0.0, 1.0))",
        "x.prior = normal(0.0, 5.0)",
    ),
    "a model's private settings": (
        "class x(Net):\n forward = lambda self, x: x * self._k.k\nx = x(_k=Box(k=1))",
        "x._k.k = 2",
    ),
    "a model's settings beside a tensor": (
        "x = Net(ema={'mean': torch.ones(1), 'rate': 1})",
        "x.ema['rate'] = 2",
    ),
    "private attributes with a state": (
        "class x(Data):\n def __len__(self): return self._n\nx = x(); x._n = 1",
        "x._n = 2",
    ),
    "pydantic's private ones": (
        "import pydantic\nclass x(pydantic.BaseModel):\n _n: int = 1\nx = x()",
        "x._n = 2",
    ),
    "a text in a table": (
        "import pandas\nx = pandas.Series(['b', 'c'])",
        "x[0] = 'd'",
    ),
    "the name of its columns": (
        "import pandas\nx = pandas.DataFrame({'a': [1]})",
        "x.columns.name = 'b'",
    ),
    "an attribute of a parameter": ("x = nn.Linear(1, 1)", "x.weight.rate = 2"),
    "an attribute of a tensor": ("x = torch.ones(1)", "x.tag = 'a'"),
    "the place of an iterator": ("x = iter([1, 2])", "next(x)"),
    "what is written into memory": ("import io\nx = io.StringIO()", "x.write('a')"),
    "another method of the same name": (
        "import types\ndef f(self): return 1\nx = Box(); x.f = types.MethodType(f, x)",
        "def f(self): return 2\nx.f = types.MethodType(f, x)",
    ),
}
USES = {
    "a forward": ("x = Net()", "x(torch.ones(2, 1)); x.eval(); x.train()"),
    "a forward inside": ("x = Box(net=Net())", "x.net(torch.ones(2, 1))"),
    "a forward that keeps something": (
        "import threading\nx = Net(lock=None)",
        "x.lock = threading.Lock(); x.last, x._seen = {'a': torch.ones(1)}, [1]",
    ),
    "a table that is read": (
        "import pandas\nx = pandas.DataFrame({'a': ['b', 'c'], 'n': [1, 2]})",
        "x.a.str.upper(); x.groupby('a').n.sum(); x.set_index('a'); str(x); x.a.unique()",
    ),
    "a file that is opened": ("x = [Data()]", "x[0][1]"),
    "a loader's turn": ("x = DataLoader(Data(), shuffle=True)", "list(x); len(x)"),
    "random numbers": (
        "x = DataLoader(Data(), shuffle=True, generator=torch.Generator())",
        "list(x); torch.rand(1); np.random.rand(); random.random()",
    ),
    "a cached property of a library's": (
        "x = [torch.distributions.Normal(torch.zeros(1), torch.ones(1))]",
        "x[0].sample(); x[0].mean",
    ),
    "a logger": (
        "x = Box(log=logging.getLogger('one'))",
        "x.log.info('a'); logging.getLogger('two')",
    ),
    "a compiled one": ("x = Net(fast=functools.lru_cache(lambda n: n))", "x.fast(1)"),
    "a class that is used": ("class x(Box): items = words", "x(a=1); isinstance(1, x)"),
    "a model that refers to what holds it": ("x = Box(net=Net())\nx.net.owner = x", "str(x.net)"),
    "a scheduler that steers": (
        "o = torch.optim.SGD([torch.ones(1)], 0.1)\nx = torch.optim.lr_scheduler.StepLR(o, 1)",
        "x.get_last_lr(); x.state_dict()",
    ),
}


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # else the first optimizer sets it


@pytest.mark.parametrize(("make", "edit"), EDITS.values(), ids=EDITS)
def test_an_edit_is_seen(make: str, edit: str) -> None:
    space = made(make)
    seen = contents(space["x"])
    assert seen is not None
    assert seen.same(space["x"])
    run(edit, space)
    assert not seen.same(space["x"])


@pytest.mark.parametrize(("make", "use"), USES.values(), ids=USES)
def test_mere_use_is_no_edit(make: str, use: str) -> None:
    space = made(make)
    seen = contents(space["x"])
    assert seen is not None
    run(use, space)
    assert seen.same(space["x"])


@pytest.mark.parametrize(
    ("make", "compared"),
    [
        ("x = Box(words=words)", "all"),
        ("x = Box(words=more)", "a sample"),
        ("x = [*range(10**7)]", "a sample"),
    ],
)
def test_of_a_larger_value_a_sample_is_compared(make: str, compared: str) -> None:
    seen = contents(made(make)["x"])
    assert isinstance(seen, Recorded)
    assert ("a sample" if seen.is_sample else "all") == compared


def made(code: str) -> dict[str, Any]:
    """Return the names that a cell with this code binds."""
    space = {"__name__": "__main__"}
    run(MADE, space)
    run(code, space)
    return space


def run(code: str, space: dict[str, Any]) -> None:
    """Run a cell's code."""
    exec(code, space)  # noqa: S102 - as the notebook does
