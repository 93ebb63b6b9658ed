"""Functions that a library has wrapped are brought and work as in a plain kernel."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.helpers.notebook import distributed, on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

RANKS = "-np 2 --launcher engines --backend none"
WAYS = {"ranks": RANKS, "script": "-np 2 --launcher torchrun --backend none"}

NOTEBOOK = """
import contextlib, functools, typing
import numpy as np, torch
base = 10

@functools.singledispatch
def kind(x): return "anything"
@kind.register
def _(x: int): return base + x
@kind.register
def of_tensors(x: "torch.Tensor"): return "tensor"

class Holder:
    @functools.singledispatchmethod
    def kind(self, x): return "anything"
    @kind.register
    def _(self, x: int): return base + x
    added = functools.partialmethod(lambda self, a, b: (a, b), 1)

@torch.jit.script
def scripted(x): return x + 1
scripted_net = torch.jit.script(torch.nn.Linear(2, 2))
traced_net = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))

Count = typing.NewType("Count", int)
counted = functools.partial(max, Count(base))
@np.vectorize
def vectorized(x): return x + base
@contextlib.contextmanager
def within(): yield base
@torch.no_grad()
def without_grad(): return torch.is_grad_enabled()
"""

CELLS = {
    "dispatch": "print(kind(1), kind(torch.ones(1)), kind('a'))",
    "dispatch by methods": "h = Holder(); print(h.kind(1), h.kind('a'), h.added(2))",
    "jit": """
        x = torch.ones(1, 2)
        print(scripted(x), scripted_net(x), traced_net(x))
        """,
    "others": """
        with within() as found: print(found, counted(3), vectorized([1]), without_grad(), Count(4))
        """,
}


@pytest.fixture(scope="module")
def notebook(shared_kernel: Kernel) -> Kernel:
    """Return a notebook with wrapped functions."""
    shared_kernel.run(f"%load_ext nbdist\n{NOTEBOOK}")
    return shared_kernel


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_they_do_what_they_do_in_a_plain_kernel(notebook: Kernel, cell: str, flags: str) -> None:
    there = notebook.run(distributed(cell, flags)).stdout
    assert there == notebook.run(dedent(cell)).stdout != ""


def test_what_is_registered_later_is_brought(notebook: Kernel) -> None:
    on_ranks(notebook, "kept = kind", RANKS)
    notebook.run("@kind.register\ndef _(x: str): return 'text'")
    cell = on_ranks(notebook, "print(kind('a'), kind(1))", RANKS)
    assert cell.stdout == "text 11\n"
    assert "Brought to 2 ranks: kind (function)." in cell.text
    assert "Brought" not in on_ranks(notebook, "print(kind('a'))", RANKS).text


COMPILED = """
net = torch.nn.Linear(2, 2)
compiled_net = torch.compile(net, backend="eager")
def passing(graph, inputs): return graph
@torch.compile(backend=passing, fullgraph=True, dynamic=True)
def compiled(x): return x + base
by_inductor = torch.compile(lambda x: x, mode="max-autotune", dynamic=False)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    @torch.compile(backend="eager")
    def forward(self, x): return self.inner(x)
whole = Net()
"""
READ = """
from nbdist.backends.torch_private.compiled_code import settings
told = settings(compiled)
assert told.pop("backend").__name__ == "passing"
print(told)
"""


def test_what_is_compiled_is_compiled_again_with_the_same_settings(notebook: Kernel) -> None:
    notebook.run(COMPILED)
    cell = """
        x = torch.ones(1, 2)
        print(compiled(x), compiled_net(x), whole(x))
        print(type(compiled_net), compiled_net._orig_mod is net)
        """
    one = RANKS.replace("2", "1")  # each imports the compiler, for seconds
    assert on_ranks(notebook, cell, one).stdout == notebook.run(dedent(cell)).stdout != ""
    told = "{'fullgraph': True, 'dynamic': True}\n"
    assert on_ranks(notebook, READ, one).stdout == notebook.run(READ).stdout == told
    options = notebook.run("print(settings(by_inductor)['options'])").stdout
    assert "'max_autotune': True" in options

    # A release of torch in which this cannot be read.
    notebook.run(
        "from nbdist.backends.torch_private import compiled_code\n"
        "read, compiled_code._context = compiled_code._context, vars\n"
        "third = torch.compile(lambda x: x + 1)"
    )
    try:
        refused = on_ranks(notebook, "print(third(1))", one, check=False)
        assert "`third` cannot be brought to the ranks: torch.compile has made it" in refused.error
    finally:
        notebook.run("compiled_code._context = read")
