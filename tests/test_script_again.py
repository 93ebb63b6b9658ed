"""What definitions evaluated when they were made, in a script: it has what the notebook has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.errors import UsageError
from tests.test_script import outcome, process, script, shell

if TYPE_CHECKING:
    from pathlib import Path

    from IPython.core.interactiveshell import InteractiveShell

    from tests.helpers.plain_process import PlainProcess

__all__ = ["process", "shell"]  # fixtures

CASES = {
    "defaults": (
        """
        import random
        BASE = 2
        SHARED = [1]
        def f(x=BASE * 3, *, y=BASE + 1, z=random.random(), w=SHARED): return x, y, z, w
        g = lambda x=BASE * 3: x
        def h(n, seen={}):
            seen[n] = True
            return seen
        def k(x=(1, True, 1.0, -0.0)): return x
        h(1)
        """,
        "BASE = 5; drawn = f()[2]; f.__kwdefaults__['z']",
        """
        print(f()[:2], f()[2] == drawn, f()[3] is SHARED, g(), h(2), k(), BASE)
        """,
        "(6, 3) True True 6 {1: True, 2: True} (1, True, 1.0, -0.0) 5\n",
    ),
    "defaults that are equal, but of another type": (
        """
        ONE = 1
        ZERO = 0.0
        def f(x=ONE, y=(ZERO,), z=float("nan")): return x, y, z
        """,
        "ONE = True; ZERO = -0.0",
        "print(f(), ONE, ZERO)",
        "(1, (0.0,), nan) True -0.0\n",
    ),
    "attributes of a class": (
        """
        import random, time
        BASE = 2
        class Cfg:
            lr = BASE * 2
            a, b = BASE, BASE + 1
            for i in range(BASE): total = i
            if BASE > 3:
                big = True
            else:
                big = False
            drawn: float = random.random()
            began = time.time()
            seen = {}
            class Inner:
                lr = BASE * 10
                def f(self, x=BASE): return x
            def f(self, x=BASE): return x, self.lr
            @staticmethod
            def s(x=BASE): return x
            from math import floor as down
        Cfg.seen["a"] = 1
        """,
        "BASE = 5; was = Cfg.drawn, Cfg.began",
        """
        print(Cfg.lr, Cfg.a, Cfg.b, Cfg.total, Cfg.big, (Cfg.drawn, Cfg.began) == was, Cfg.seen,
              Cfg.Inner.lr, Cfg.Inner().f(), Cfg().f(), Cfg.s(), Cfg.down(1.5))
        """,
        "4 2 3 1 False True {'a': 1} 20 2 (2, 4) 2 1\n",
    ),
    "a dataclass": (
        """
        from dataclasses import dataclass, field
        BASE = 2
        def made(): return [BASE]
        @dataclass
        class Cfg:
            lr: float = BASE * 0.5
            width: int = field(default=BASE)
            items: list = field(default_factory=lambda: [1, 2])
            more: list = field(default_factory=made)
        @dataclass(frozen=True, order=True)
        class Point:
            x: int = BASE
        """,
        "BASE = 5",
        "print(Cfg(), Point(), Cfg().items is Cfg().items)",
        "Cfg(lr=1.0, width=2, items=[1, 2], more=[5]) Point(x=2) False\n",
    ),
    "a dataclass whose factory is bound anew": (
        """
        from dataclasses import dataclass, field
        def items(): return ["old"]
        @dataclass
        class Cfg:
            items: list = field(default_factory=items)
        """,
        "def items(): return ['new']",
        "print(Cfg(), items())",
        "Cfg(items=['old']) ['new']\n",
    ),
    "an enumeration, a named tuple, a typed dict": (
        """
        import enum
        from typing import NamedTuple, TypedDict
        BASE = 2
        class E(enum.Enum):
            A = BASE
            B = BASE + 1
            C = enum.auto()
        class I(enum.IntEnum):
            A = BASE
        class S(str, enum.Enum):
            A = "a"
        class P(NamedTuple):
            x: int = BASE
            y: int = 1
        class T(TypedDict):
            x: int
        e = E.A
        p = P()
        """,
        "BASE = 5",
        """
        print(E.A.value, E.B.value, E.C.value, int(I.A), S.A.value, P(), T(x=1), e is E.A, p == P())
        """,
        "2 3 4 2 a P(x=2, y=1) {'x': 1} True True\n",
    ),
    "decorators with arguments": (
        """
        import functools
        BASE = 2
        def scale(k):
            def decorate(f):
                @functools.wraps(f)
                def scaled(x): return f(x) * k
                return scaled
            return decorate
        @scale(BASE)
        def f(x): return x
        @functools.lru_cache(maxsize=BASE)
        def g(x): return x
        class A:
            @scale(BASE)
            def f(self): return 3
        """,
        "BASE = 5",
        "print(f(3), f.__name__, g.cache_parameters()['maxsize'], g(4), A.f(A()))",
        "6 f 2 4 6\n",
    ),
    "decorators that hold state": (
        """
        class Count:
            def __init__(self, f): self.f, self.n = f, 0
            def __call__(self):
                self.n += 1
                return self.f()
        def counted(f):
            n = 0
            def call():
                nonlocal n
                n += 1
                return n, f()
            return call
        def noted(f):
            def call():
                call.n += 1
                return call.n, f()
            call.n = 0
            return call
        @Count
        def a(): return "a"
        @counted
        def b(): return "b"
        @noted
        def c(): return "c"
        a(), b(), c()
        """,
        "",
        "print(a(), a.n, b(), c())",
        "a 2 (2, 'b') (2, 'c')\n",
    ),
    "a decorator that is another one now": (
        """
        def twice(f):
            def call(): return 2 * f()
            return call
        @twice
        def f(): return 1
        """,
        """
        def twice(f):
            def call(): return 200 * f()
            return call
        """,
        "print(f(), twice(f)())",
        "2 400\n",
    ),
    "decorators that count, or keep what they are given": (
        """
        COUNT = 0
        class Kept:
            n = 0
            names = []
            def keep(self, f):
                self.n += 1
                self.names.append(f.__name__)
                return f
        kept = Kept()
        log = []
        def counted(f):
            global COUNT
            COUNT += 1
            log.append(COUNT)
            return f
        @counted
        @kept.keep
        def f(): return 1
        @counted
        class A:
            n = 1
        """,
        "",
        "print(f(), A.n, COUNT, kept.n, Kept.names, log)",
        "1 1 2 1 ['f'] [1, 2]\n",
    ),
    "bases and metaclasses": (
        """
        BASE = 2
        made = []
        def make(n):
            made.append(n)
            return type("Made", (), {"n": n})
        class Meta(type):
            def __new__(mcs, name, bases, space, tag=None):
                cls = super().__new__(mcs, name, bases, space)
                cls.tag = tag
                return cls
            def __init__(cls, name, bases, space, tag=None): ...
        class A(make(BASE)): ...
        class B(metaclass=Meta, tag=BASE):
            x = BASE
        """,
        "BASE = 5",
        "print(A.n, made, B.tag, B.x)",
        "2 [2] 2 2\n",
    ),
    "annotations": (
        """
        import typing
        BASE = 2
        class Net: ...
        def f(x: BASE, y: typing.Optional[Net] = None, *z: "later") -> list[int]: ...
        class A:
            x: BASE
        """,
        "BASE = 5",
        "print(f.__annotations__['x'], A.__annotations__, f.__annotations__['return'])",
        "2 {'x': 2} list[int]\n",
    ),
    "what was set on functions and classes": (
        """
        def f(): "f's"
        def g(): ...
        class A:
            "A's"
        f.calls, f.__doc__, f.__name__ = 3, "new", "other"
        g.calls = [1]
        A.__doc__, A.n = "new", 3
        calls = g.calls
        """,
        "",
        "print(f.calls, f.__doc__, f.__name__, A.__doc__, A.n, g.calls, g.calls is calls)",
        "3 new other new 3 [1] True\n",
    ),
    "one object in a definition and elsewhere": (
        """
        SHARED = [1]
        def f(x=SHARED): return x
        def g(x=[2]): return x
        class A:
            items = SHARED
            own = [3]
        both, own, inner = g(), A.own, [A.own]
        """,
        "old = SHARED; SHARED = [4]",
        """
        f().append(5)
        print(f() is A.items is old, g() is both, A.own is own is inner[0], SHARED, old)
        """,
        "True True True [4] [1, 5]\n",
    ),
    "a default that holds what holds the function": (
        """
        HANDLERS = {}
        def f(table=HANDLERS): return table
        HANDLERS["f"] = f
        """,
        "",
        "print(f() is HANDLERS, HANDLERS['f'] is f)",
        "True True\n",
    ),
    "closures with a variable in common": (
        """
        def pair():
            n = 0
            def up():
                nonlocal n
                n += 1
                return n
            def get(): return n
            return up, get
        up, get = pair()
        up()
        def f(x=get): return x()
        class Holder:
            get = get
        """,
        "",
        "up(); print(get(), f(), Holder.get is get)",
        "2 2 True\n",
    ),
    "names of modules bound anew": (
        """
        import math as m
        def f(x=m.pi): return round(x, 2), hasattr(m, "pi")
        """,
        "import string as m",
        "print(f(), m.__name__)",
        "(3.14, False) string\n",
    ),
    "builtins under other values": (
        """
        def f(x=len("abc"), y=max(1, 2)): return x, y
        def g(x=sorted): return x
        """,
        "len = 5; sorted = 6; open = 7; set = 8",
        "print(f(), g()([2, 1]), len, sorted, open, set, values[0])",
        "(3, 2) [1, 2] 5 6 7 8 0\n",
    ),
    "names that the script itself uses": (
        """
        _data, _values, _file, _name = 1, 2, 3, 4
        big = list(range(1000))
        """,
        "",
        "print(_data, _values, _file, _name, len(big))",
        "1 2 3 4 1000\n",
    ),
    "definitions of which one is used": (
        """
        FAST = True
        if FAST:
            def f(): return "fast"
        else:
            def f(): return "slow"
        fs = []
        for i in range(3):
            def g(x=i): return x
            fs.append(g)
        def many(*args, k=FAST, **more): return args, k, more
        """,
        "FAST = False; i = 7",
        "print(f(), g(), [each() for each in fs], many(1, a=2))",
        "fast 2 [0, 1, 2] ((1,), True, {'a': 2})\n",
    ),
    "what a list holds twice": (
        """
        row = [0]
        rows = [row, row]
        table = [[0]] * 2
        """,
        "",
        "rows[0].append(1); table[0].append(1); print(rows, table)",
        "[[0, 1], [0, 1]] [[0, 1], [0, 1]]\n",
    ),
    "a function of several kinds": (
        """
        from functools import partial, cached_property
        BASE = 2
        def power(x, n): return x ** n
        square = partial(power, n=BASE)
        class A:
            n = BASE
            @property
            def p(self): return self.n
            @p.setter
            def p(self, value): self.n = value
            @cached_property
            def c(self): return self.n * 10
        """,
        "BASE = 5",
        "a = A(); a.p = 4; print(square(3), A.n, a.c)",
        "9 2 40\n",
    ),
    "a registry that a class hands on to": (
        """
        class Base:
            known = {}
            def __init_subclass__(cls, **kw):
                super().__init_subclass__(**kw)
                Base.known[cls.__name__] = cls
        ORDER = []
        class Told:
            def __init_subclass__(cls, tag=0): ORDER.append((cls.__name__, tag))
        class A(Base): ...
        class B(Told, tag=1): ...
        """,
        "",
        "print(list(Base.known), Base.known['A'] is A, ORDER, B.__name__)",
        "['A'] True [('B', 1)] B\n",
    ),
    "classes that tell of those made from them": (
        """
        TAG, COUNT = 3, 0
        class Told:
            seen = []
            def __init_subclass__(cls, tag=0):
                cls.tag = tag
                Told.seen.append(cls.__name__)
        class Counted:
            def __init_subclass__(cls):
                global COUNT
                COUNT += 1
        class A(Told, tag=TAG): ...
        class B(Told): ...
        class C(Counted): ...
        """,
        "TAG = 4",
        "print(A.tag, B.tag, Told.seen, COUNT, C.__name__)",
        "3 0 ['A', 'B'] 1 C\n",
    ),
    "objects as defaults and attributes": (
        """
        from dataclasses import dataclass, field
        class Config:
            def __init__(self, lr=1): self.lr = lr
        @dataclass(frozen=True)
        class Inner:
            n: int = 1
        def train(config=Config(), *, inner=Inner(2)): return config.lr, inner.n
        class Trainer:
            config = Config(3)
            both = [config]
            def run(self, config=Config(4)): return config.lr
        @dataclass
        class Outer:
            inner: Inner = Inner(5)
            more: Inner = field(default=Inner(6))
        train.__defaults__[0].lr = 7
        config = train.__defaults__[0]
        _Trainer_1 = 8
        """,
        "def Config(lr): raise RuntimeError",
        """
        config.lr += 1
        print(train(), Trainer.config.lr, Trainer.both[0] is Trainer.config, Trainer().run())
        print(Outer(), _Trainer_1)
        """,
        "(8, 2) 3 True 4\nOuter(inner=Inner(n=5), more=Inner(n=6)) 8\n",
    ),
    "tensors with memory in common": (
        """
        import torch
        weights = torch.zeros(3)
        def first(w=weights[:1]): return w.item()
        rest = weights[1:]
        """,
        "",
        "weights += 1; print(first(), rest)",
        "1.0 tensor([1., 1.])\n",
    ),
    "a global that has gone": (
        """
        GONE = 1
        def f(x=GONE):
            try: return GONE
            except NameError: return x
        """,
        "del GONE",
        "print(f())",
        "1\n",
    ),
}
"""A cell that defines, one that changes something, a distributed cell, and what it prints."""


@pytest.mark.parametrize(("before", "between", "cell", "printed"), CASES.values(), ids=CASES)
def test_a_definition_has_in_a_script_what_it_has_in_the_notebook(
    shell: InteractiveShell,
    process: PlainProcess,
    tmp_path: Path,
    before: str,
    between: str,
    cell: str,
    printed: str,
) -> None:
    shell.user_ns["values"] = list(range(1000))
    assert outcome(shell, process, cell, tmp_path, before, between) == printed


READABLE = """
import functools, logging, threading
from dataclasses import dataclass, field
from pathlib import Path
BASE = 2
ROOT = Path("/tmp")
REGISTRY = {}

def timed(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)
    return wrapper

def register(f):
    REGISTRY[f.__name__] = f
    return f

@dataclass
class Config:
    lr: float = 1e-3
    layers: list[int] = field(default_factory=lambda: [1, 2])
    root: Path = ROOT / "x"
    n: int = int("16") // BASE

class Net:
    lock = threading.Lock()
    log = logging.getLogger(__name__)
    width, depth = BASE * 2, 3
    __slots__ = ("x",)
    @timed
    def forward(self, config: Config | None = None, *, n=BASE + 1): ...
    @property
    @timed
    def area(self): return self.width * self.depth

@register
@functools.lru_cache(maxsize=None)
def cached(x=Config): return x

@register
@timed
def both(): ...
"""


def test_source_stays_where_it_gives_the_same_again(shell: InteractiveShell) -> None:
    shell.run_cell(READABLE, store_history=True).raise_error()
    made = script(shell, "print(Config(), Net(), cached(), both())").text
    start, end = READABLE.index("@dataclass"), READABLE.index("@register\n@functools")
    for definition in READABLE[start:end].split("\n\n"):
        assert definition.strip() in made, made
    shell.run_cell("BASE = 5").raise_error()
    made = script(shell, "print(Config(), Net())").text
    assert "    n: int = 8\n" in made
    assert "    width, depth = 4, 3\n" in made
    assert "*, n=3): ..." in made
    assert "# With the notebook's values of: int('16') // BASE\n@dataclass" in made
    assert "There is no complete source for Net" not in made


REFUSED = {
    "Tagged": "`Told.__init_subclass__` takes arguments that may have changed",
    "order": "functools.KeyWrapper",
}


def test_what_can_be_neither_source_nor_a_value_is_refused(shell: InteractiveShell) -> None:
    shell.run_cell(
        """
from functools import cmp_to_key
TAG = 1
class Told:
    def __init_subclass__(cls, tag): ...
class Tagged(Told, tag=TAG): ...
order = cmp_to_key(lambda a, b: a - b)
""",
        store_history=True,
    ).raise_error()
    for name, message in REFUSED.items():
        with pytest.raises(UsageError, match=message):
            script(shell, f"print({name})")
