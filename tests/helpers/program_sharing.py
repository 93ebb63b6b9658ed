"""What generated notebooks say about sharing: views, tensors, models, what holds them, annotations.

These rules join those of `tests/helpers/programs.py`.
"""

from __future__ import annotations

from tests.helpers.program_forms import HELD, IN_PLACE
from tests.helpers.programs import Writer, a_class, a_dict, an_array, rule

# -- memory that several names share ---------------------------------------------------------------

VIEWS = {
    "array": ["{0}[:2]", "{0}[::-1]", "{0}.reshape(-1)", "{0}[None].T", "{0}.view()"],
    "tensor": ["{0}[:2]", "{0}.view(-1)", "{0}[None].T", "{0}.detach()", "{0}.numpy()"],
}
"""For each kind, expressions that share the memory of the name {0}."""


@rule("array", weight=3)
def a_view(w: Writer) -> str:
    return _view(w, "array")


@rule(weight=2)
def a_tensor(w: Writer) -> str:
    name = w.name("tensor")
    form = w.one_of(
        [
            "import torch\n{0} = torch.arange({1} % 5 + 1)",
            "import torch\n{0} = torch.full((3,), {1})",
            "import torch\n{0} = torch.tensor([[1, {1}], [2, 3]])[0]",
        ]
    )
    return w.bind(name, "tensor", form.format(name, w.number(name)))


@rule("tensor", weight=3)
def a_tensors_view(w: Writer) -> str:
    return _view(w, "tensor")


def _view(w: Writer, kind: str) -> str:
    name = w.name("view")
    bases = w.having(kind, but=name)
    if not bases:
        return an_array(w)
    view = w.one_of(VIEWS[kind]).format(w.one_of(bases))
    return w.bind(name, "view", f"{name} = {view}")


@rule("view", "tensor")
def edit_view(w: Writer) -> str:
    name = w.one_of(w.having("view", "tensor"))
    return w.touch(name, f"{name}[...] = {w.new_number()}")


# -- models, gradients, optimizers -----------------------------------------------------------------


@rule(weight=3)
def a_module(w: Writer) -> str:
    name = w.name("module")
    return w.bind(
        name,
        "module",
        f"import torch\n{name} = torch.nn.Linear(1, 1, bias=False)\n"
        f"with torch.no_grad():\n    {name}.weight.fill_({w.number(name)})",
    )


@rule("module", weight=2)
def train_module(w: Writer) -> str:
    name = w.one_of(w.having("module"))
    form = w.one_of(
        [
            "with torch.no_grad():\n    {0}.weight.fill_({2})",
            "with torch.no_grad():\n    {0}.weight += 1",
            "{0}(torch.ones(1) * {1}).backward()",
            "{0}.weight.grad = torch.full((1, 1), float({1}))",
            "{0}.requires_grad_(False).requires_grad_(True)",
        ]
    )
    text = form.format(name, w.number(name), w.new_number())
    return w.touch(name, f"import torch\n{text}")


@rule("module")
def a_gradient(w: Writer) -> str:
    name = w.one_of(w.having("module"))
    form = w.one_of(["{0}(torch.ones(1)).sum().backward()", IN_PLACE["graded"], "{0}.zero_grad()"])
    return w.touch(name, "import torch\n" + form.format(name, w.new_number()))


@rule("module")
def an_optimizer(w: Writer) -> str:
    name = w.name("optimizer")
    modules = w.having("module", but=name)
    if not modules:
        return a_module(w)
    return w.bind(
        name,
        "optimizer",
        f"import torch\n{name} = torch.optim.SGD({w.one_of(modules)}.parameters(), lr=1.0)",
    )


@rule("module")
def wrapped_module(w: Writer) -> str:
    name = w.name("module")
    modules = w.having("module", but=name)
    if not modules:
        return a_module(w)
    form = w.one_of(
        ["{0} = torch.nn.Sequential({1})[0]", "{0} = torch.nn.ModuleList([{1}])[0]", "{0} = {1}"]
    )
    return w.bind(name, "module", "import torch\n" + form.format(name, w.one_of(modules)))


# -- values that are too large to be compared at once ----------------------------------------------


@rule(weight=2)
def a_large_value(w: Writer) -> str:
    name = w.name("large")
    form = w.one_of(
        [
            "{0} = [{1}] * 30_000",
            "{0} = [[{1}, i] for i in range(9_000)]\n{0} = [sum(each) for each in {0}]",
            "{0} = list(range(40_000, 0, -1))",
        ]
    )
    return w.bind(name, "large", form.format(name, w.number(name)))


# -- what holds a value of another name ------------------------------------------------------------


@rule(*HELD, weight=4)
def a_holder(w: Writer) -> str:
    name = w.name("holder")
    held = w.having(*HELD, but=name)
    if not held:
        return a_dict(w)
    one = w.one_of(held)
    reads = HELD[w.things[one].kind].format
    form = w.one_of(
        [
            (
                "class {0}_kind:\n    def __init__(self, held):\n        self.held = held\n"
                "    def __call__(self):\n        return {2}\n{0} = {0}_kind({1})"
            ),
            "def {0}(held={1}):\n    return {3}",
            "def {0}_of(held):\n    return lambda: {3}\n{0} = {0}_of({1})",
            "from functools import partial\n{0} = partial(lambda held: {3}, {1})",
            "{0} = (lambda inside: lambda: {4})([{1}])",
            "{0} = (lambda inside: lambda: {5})(dict(a={1}))",
            "from collections import deque\n{0} = (lambda inside: lambda: {4})(deque([{1}]))",
            (
                "from types import SimpleNamespace\n"
                "{0} = (lambda inside: lambda: {6})(SimpleNamespace(a={1}))"
            ),
            (
                "from torch.utils.data import DataLoader\n"
                "{0} = (lambda inside: lambda: {7})(DataLoader([{1}]))"
            ),
            (
                "class {0}_kind:\n    held = {1}\n"
                "    def __call__(self):\n        return {2}\n{0} = {0}_kind()"
            ),
        ]
    )
    read = ("self.held", "held", "inside[0]", "inside['a']", "inside.a", "inside.dataset[0]")
    text = form.format(name, one, *map(reads, read))
    return w.bind(name, "holder", text)


# -- names that stand in annotations alone ---------------------------------------------------------


@rule(weight=3)
def annotated(w: Writer) -> str:
    name = w.name("typed")
    own = w.having("class", "configs", "points", "enum", but=name)
    hint = w.one_of(["List[int]", "Dict[str, List[int]]", "Kind", *own])
    if hint in own and not own:
        return a_class(w)
    form = w.one_of(
        [
            'def {0}(x: "{1}" = {2}):\n    return {2}',
            'def {0}(x={2}) -> "{1}":\n    return x',
            'class {0}:\n    x: "{1}"\n    y: int = {2}',
            "from dataclasses import dataclass\n@dataclass\nclass {0}:\n    x: '{1}' = {2}",
            "from typing import NamedTuple\nclass {0}(NamedTuple):\n    x: '{1}' = {2}",
            "from typing import Optional\ndef {0}(x: Optional['{1}'] = {2}):\n    return {2}",
        ]
    )
    text = form.format(name, hint, w.number(name))
    before = "from typing import Dict, List\nKind = int\n"
    found = w.bind(name, "typed", before + text)
    if hint in own:
        w.uses(name, hint)
    return found
