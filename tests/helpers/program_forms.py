"""Parts of generated notebooks: names, expressions that read each kind of value, odd statements.

The writer replaces braces: {0} is the name, {1} and {2} are numbers.
"""

from __future__ import annotations

INFINITE = ["int({0} > 5)"]
READ = {
    "int": ["{0}"],
    "list": ["sum({0})", "len({0})", "max({0}, default=0)"],
    "dict": ["sum({0}.values())", "len({0})"],
    "array": ["int({0}.sum())", "len({0})"],
    "func": ["{0}({1})"],
    "with_k": ["{0}({1})", "{0}({1}, k={1})"],
    "gen": ["sum({0}({1}))"],
    "maker": ["{0}({1})(2)"],
    "funcs": ["{0}[0]({1})", "sum(each({1}) for each in {0})"],
    "table": ["sum(each({1}) for each in {0}.values())", "len({0})"],
    "class": ["{0}({1}).value()", "{0}.scale"],
    "obj": ["{0}.value()", "{0}.n", "{0}.scale", "{0}.value({1})"],
    "objs": ["sum(each.value() for each in {0})", "{0}[0].n"],
    "config": ["{0}.lr", "{0}.total()", "{0}.layers[0]", "{0}.lr + len({0}.layers)"],
    "configs": ["{0}(lr={1}).total()", "{0}().lr", "{0}().total()"],
    "point": ["{0}.x", "sum({0})", "{0}.moved({1}).y"],
    "points": ["{0}({1}, 2).moved(1).x", "{0}({1}).y"],
    "deco": ["{0}(lambda x: x + 1)({1})"],
    "enum": ["{0}.A.value", "len({0})", "{0}(2).value", "{0}.B.twice()"],
    "math": ["{0}.floor({1} / 2)"],
    "np": ["int({0}.sum([{1}, 1]))"],
    "floor": ["{0}({1} / 2)"],
    "path": ["len({0}.join('a', 'b'))"],
    "counter": ["{0}([1, 1, {1}])[1]"],
    "cached": ["{0}({1})"],
    "meter": ["{0}.count"],
    "view": ["int({0}.sum())", "len({0})"],
    "tensor": ["int({0}.sum())", "len({0})"],
    "module": [
        "int({0}.weight.item())",
        "int(0 if {0}.weight.grad is None else {0}.weight.grad.item())",
    ],
    "large": ["sum({0})", "len({0})", "{0}[77]"],
    "optimizer": ["int({0}.param_groups[0]['params'][0].item())"],
    "holder": ["{0}()"],
    "own_int": ["{0}"],
    "own_func": ["{0}({1})"],
    "own_obj": ["{0}.value()", "{0}.n", "{0}.scale"],
    "own_holder": ["{0}()"],
}
"""For each kind, expressions whose values are whole numbers: {0} is the name, {1} a number."""

MISC: list[tuple[str, list[str]]] = [
    (
        "import re\n{0} = re.compile('a' * ({1} % 7 + 1))",
        ["len({0}.pattern)", "len({0}.findall('a' * 9))"],
    ),
    ("from collections import deque\n{0} = deque([{1}, 2], maxlen=3)", ["sum({0})", "{0}.maxlen"]),
    (
        "from types import SimpleNamespace\n{0} = SimpleNamespace(lr={1}, sub=SimpleNamespace(x=3))",
        ["{0}.lr", "{0}.sub.x"],
    ),
    ("import random\n{0} = random.Random({1})", ["{0}.getstate()[1][0] % 97"]),
    (
        "import numpy as np\n{0} = np.random.default_rng({1} % 97)",
        ["{0}.bit_generator.state['state']['state'] % 97"],
    ),
    ("from pathlib import Path\n{0} = Path('a') / str({1})", ["len({0}.name)", "len({0}.parts)"]),
    ("from decimal import Decimal\n{0} = Decimal({1}) / 4", ["int({0} * 4)"]),
    ("import datetime as dt\n{0} = dt.timedelta(days={1} % 99)", ["{0}.days"]),
    ("import logging\n{0} = logging.getLogger('train')", ["len({0}.name)"]),
    ("import threading\n{0} = threading.Lock()", ["int({0}.locked())"]),
    ("{0} = (i for i in range(3))", ["int({0} is None)"]),
    ("{0} = iter([1, {1}])", ["{0}.__length_hint__()"]),
    ("from string import ascii_letters as {0}", ["len({0})"]),
    (
        "from collections import ChainMap\n{0} = ChainMap({{'a': {1}}}, {{'b': 2}})",
        ["{0}['a']", "{0}['b']"],
    ),
    (
        (
            "from functools import singledispatch\n@singledispatch\ndef {0}(x):\n    return {2}\n"
            "@{0}.register\ndef _of_text(x: str):\n    return {1}"
        ),
        ["{0}(3)", "{0}('a')"],
    ),
    (
        (
            "from functools import cached_property\nclass {0}:\n    @cached_property\n    def big(self):\n"
            "        return {1} + 100"
        ),
        ["{0}().big"],
    ),
    (
        "from contextlib import contextmanager\n@contextmanager\ndef {0}(k={1}):\n    yield k + {1}",
        ["{0}(3).__enter__()", "{0}().__enter__()"],
    ),
    (
        (
            "class {0}(Exception):\n    code = {1}\n    def __init__(self, n):\n        super().__init__(f'no {{n}}')\n"
            "        self.n = n\n{0}_one = {0}(2)"
        ),
        ["{0}(3).code", "{0}_one.n", "len(str({0}_one))", "isinstance({0}_one, {0})"],
    ),
    (
        (
            "from abc import ABC, abstractmethod\nclass {0}(ABC):\n    @abstractmethod\n    def run(self): ...\n"
            "class {0}Sub({0}):\n    def run(self):\n        return {1}"
        ),
        ["{0}Sub().run()", "issubclass({0}Sub, {0})", "len({0}.__abstractmethods__)"],
    ),
    (
        (
            "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass {0}(Generic[T]):\n    k = {1}\n"
            "    def get(self):\n        return {1}"
        ),
        ["{0}().get()", "{0}[int]().k"],
    ),
    ("{0} = type('{0}', (), {{'value': lambda self: {1}, 'k': {1}}})", ["{0}().value()", "{0}.k"]),
    (
        "class Meta(type):\n    def __getitem__(cls, key):\n        return key + {1}\nclass {0}(metaclass=Meta):\n    k = {1}",
        ["{0}[2]", "{0}.k"],
    ),
    (
        "{0} = {{(1, 2): {1}, 'a': {{1, 2, {1}}}, None: b'x', True: 1.5}}",
        ["{0}[1, 2]", "len({0}['a'])", "len({0}[None])"],
    ),
    ("{0} = range({1} % 9)", ["len({0})"]),
    ("{0} = float('inf')", INFINITE),
    ("{0} = bytearray(b'abc')", ["len({0})", "{0}[0]"]),
    ("{0} = [{1}]\n{0}.append({0})", ["len({0}[1][1])", "int({0}[1] is {0})"]),
    (
        (
            "class Node:\n    def __init__(self, parent, n):\n        self.parent, self.kids, self.n = parent, [], n\n"
            "        if parent:\n            parent.kids.append(self)\n{0} = Node(None, {1})\n{0}_kid = Node({0}, 3)"
        ),
        [
            "{0}.n",
            "int({0}.kids[0].parent is {0})",
            "int({0}.kids[0] is {0}_kid)",
            "{0}_kid.parent.n",
            "isinstance({0}, Node)",
        ],
    ),
    ("from operator import itemgetter\n{0} = itemgetter({1} % 2)", ["{0}([4, 5])"]),
    (
        "class AttrDict(dict):\n    __getattr__ = dict.__getitem__\n    __setattr__ = dict.__setitem__\n{0} = AttrDict(lr={1}, sub=AttrDict(x=1))",
        ["{0}.lr", "{0}.sub.x", "len({0})"],
    ),
    (
        (
            "class {0}:\n    def __getattr__(self, name):\n        if name.startswith('_'):\n            raise AttributeError(name)\n"
            "        return len(name) + {1}\n{0}_one = {0}()"
        ),
        ["{0}_one.abc", "{0}().abc"],
    ),
    (
        (
            "class {0}:\n    def __init__(self):\n        self.x = {1}\n    def __bool__(self):\n        raise ValueError('ambiguous')\n"
            "    def __eq__(self, other):\n        raise ValueError('no')\n    __hash__ = None\n{0}_one = {0}()"
        ),
        ["{0}_one.x", "{0}().x"],
    ),
    (
        "class {0}(list):\n    scale = {1}\n    def total(self):\n        return sum(self) + self.scale\n{0}_one = {0}([1, {1}])",
        ["{0}_one.total()", "{0}([1]).total()", "len({0}_one)"],
    ),
    (
        (
            "class Typed:\n    def __set_name__(self, owner, name):\n        self.name = name\n    def __get__(self, obj, kind=None):\n"
            "        return len(self.name) + {1}\nclass {0}:\n    lr = Typed()"
        ),
        ["{0}().lr", "{0}.lr"],
    ),
    (
        (
            "class {0}:\n    def __init__(self, n):\n        self.n, self.cache = n, {{}}\n    def __getstate__(self):\n"
            "        return {{'n': self.n}}\n    def __setstate__(self, state):\n        self.n, self.cache = state['n'], {{'k': self}}\n"
            "{0}_one = {0}({1})"
        ),
        ["{0}_one.n", "{0}(2).n"],
    ),
    (
        (
            "class {0}:\n    __n = {1}\n    def __secret(self):\n        return self.__n\n    def open(self):\n        return self.__secret()\n"
            "{0}_one = {0}()"
        ),
        ["{0}_one.open()", "{0}().open()"],
    ),
    (
        "class {0}:\n    def __init__(self):\n        self.n = {1}\n        self.act = lambda x: x + self.n\n{0}_one = {0}()",
        ["{0}_one.act({1})", "{0}().act(1)", "int({0}_one.act(0) == {0}_one.n)"],
    ),
    (
        (
            "from dataclasses import dataclass, field\n@dataclass\nclass {0}Base:\n    a: int = {1}\n@dataclass(order=True)\n"
            "class {0}({0}Base):\n    b: int = {1} + 1\n    def total(self):\n        return self.a + self.b\n{0}_one = {0}(1)"
        ),
        [
            "{0}().total()",
            "{0}_one.total()",
            "{0}_one.b",
            "int({0}_one < {0}(50))",
            "isinstance({0}_one, {0}Base)",
        ],
    ),
    (
        "import functools\n{0} = functools.reduce(lambda f, g: lambda x: g(f(x)), [lambda x: x + {1}, lambda x: 2 * x])",
        ["{0}(3)"],
    ),
    ("from itertools import chain as {0}", ["len(list({0}([1], [2])))"]),
    (
        "def {0}(*args, **kwargs):\n    return len(args) + sum(kwargs.values()) + {1}\n{0}.__name__ = 'other'",
        ["{0}(1, 2, a=3)", "len({0}.__name__)"],
    ),
    (
        (
            "def {0}(fn=None, *, k={1}):\n    if fn is None:\n        return lambda fn: {0}(fn, k=k)\n    return lambda x: fn(x) + k\n"
            "@{0}\ndef {0}_a(x):\n    return x\n@{0}(k=3)\ndef {0}_b(x):\n    return {2}"
        ),
        ["{0}_a(1)", "{0}_b(2)", "{0}(abs)(3)"],
    ),
    (
        "def {0}():\n    return [{0}_helper(i) for i in range(2)]\ndef {0}_helper(x):\n    return {2}",
        ["sum({0}())", "{0}_helper(1)"],
    ),
    (
        "def {0}(x):\n    return {0}_odd(x - 1) if x > 0 else {1}\ndef {0}_odd(x):\n    return {0}(x - 1) if x > 0 else 7",
        ["{0}(3)", "{0}_odd(3)"],
    ),
]
"""Statements that bind a name, and expressions that read it."""

SHOW = {
    "list": ["{0}"],
    "dict": ["{0}"],
    "config": ["{0}", "{0} == type({0})(lr={0}.lr, layers={0}.layers)"],
    "point": ["{0}", "{0}._asdict()"],
    "enum": ["{0}.A", "list({0})"],
    "func": [
        "{0}.__name__",
        "{0}.__doc__",
        "[{0}(x) for x in range(2)]",
        "getattr({0}, 'scale', None)",
    ],
    "with_k": ["{0}.__defaults__", "{0}.__kwdefaults__"],
    "class": [
        "{0}.__name__",
        "{0}.__mro__[1].__name__",
        "sorted(n for n in vars({0}) if n[0] != '_')",
    ],
    "obj": ["type({0}).__name__", "sorted(vars({0}))"],
    "table": ["sorted({0})"],
    "funcs": ["[each(2) for each in {0}]", "[each.__name__ for each in {0}]"],
    "objs": ["[type(each).__name__ for each in {0}]"],
    "array": ["{0}.tolist()"],
    "view": ["{0}.tolist()"],
    "tensor": ["{0}.tolist()"],
    "module": [
        *["{0}.weight.grad is None or {0}.weight.grad.tolist()"] * 2,
        "[each.requires_grad for each in {0}.parameters()]",
    ],
    "typed": ["__import__('typing').get_type_hints({0})", "sorted({0}.__annotations__)"],
}
"""For each kind, what else is observed."""

HELD = {
    "list": "sum({})",
    "dict": "sum({}.values())",
    "array": "int({}.sum())",
    "tensor": "int({}.sum())",
    "module": "int({}.weight.item())",
    "obj": "{}.n",
    "large": "sum({})",
}
"""What can be held, with an expression that reads it."""

IN_PLACE = {
    "list": "{0}.append({1})",
    "shortened": "{0}[2:] = {0}[2:-1]",
    "dict": "{0}['lr'] = {1}",
    "class": "{0}.scale = {1}",
    "obj": "{0}.n = {1}",
    "array": "{0}[...] = {1}",
    "view": "{0}[...] = {1}",
    "tensor": "{0}[...] = {1}",
    "module": "{0}.weight.data.fill_({1})",
    "graded": "{0}.weight.grad = {0}.weight.detach() * 0 + {1}",
    "large": "{0}[len({0}) // 3] = {1}",
    "optimizer": (
        "{0}.param_groups[0]['params'][0].grad = __import__('torch').ones(1, 1) * {1}\n{0}.step()"
    ),
}
"""For each kind, a statement that changes a value in place."""

ALSO = {"list": "shortened", "module": "graded"}
"""For some kinds, another entry of `IN_PLACE`: longer lists get shorter, and models get gradients."""

NAMES = {
    "int": ["n", "lr", "width", "seed"],
    "list": ["items", "layers", "log"],
    "dict": ["options", "stats", "params"],
    "array": ["data", "weights"],
    "func": ["f", "g", "h", "loss", "step"],
    "gen": ["batches", "stream"],
    "maker": ["make", "build"],
    "funcs": ["steps", "hooks"],
    "table": ["registry", "losses"],
    "class": ["A", "B", "Net", "Model"],
    "obj": ["a", "b", "net", "model"],
    "objs": ["models", "parts"],
    "configs": ["Config", "Setup"],
    "config": ["config", "conf"],
    "points": ["Point", "Pair"],
    "point": ["point", "pair"],
    "deco": ["twice", "plus", "traced"],
    "enum": ["Mode", "Stage"],
    "bump": ["tick", "count_up", "note"],
    "box": ["state", "box"],
    "cached": ["fib", "table_of"],
    "meter": ["meter", "tracker"],
    "view": ["first", "part", "flat"],
    "tensor": ["x", "target"],
    "module": ["net", "layer", "head"],
    "optimizer": ["opt", "sgd"],
    "holder": ["trainer", "bundle", "dataset"],
    "large": ["table", "vocabulary"],
    "typed": ["Args", "parse", "main"],
    "misc": ["thing", "other", "_data", "_values", "_name", "time"],
}
