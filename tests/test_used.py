"""Which names a cell is found to read."""

from __future__ import annotations

from textwrap import dedent

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbdist.cell.names.used_names import used
from nbdist.magics.distributed import check_syntax

pytestmark = pytest.mark.usefixtures("becomes_main")

CELLS = {
    "reads": ("print(x, y.z)", "print x y", ""),
    "binds before": ("x = 1\nprint(x)", "print", ""),
    "binds after": ("print(x)\nx = 1", "print x", ""),
    "augments": ("x += y", "x y", ""),
    "imports": ("import a.b, c as d\nfrom e import f\na, d, f, c", "c", ""),
    "binds on one way": ("if a:\n    x = 1\nx", "a", "x"),
    "binds on both ways": ("if a:\n    x = 1\nelse:\n    x = 2\nx", "a", ""),
    "binds in a loop": ("for i in r:\n    x = i\nx, i", "r", "x i"),
    "binds in with": ("with open(p) as f:\n    x = f.read()\nx", "open p", ""),
    "binds in try": ("try:\n    x = a\nexcept E as e:\n    e\nx", "a E", "x"),
    "walrus": ("if (n := f()):\n    n", "f", ""),
    "comprehension": ("[i + k for i in r for j in i if j]", "r k", ""),
    "lambda": ("g = lambda a, b=d: a + e", "d e", ""),
    "function": ("def f(a, b=d, *c) -> t:\n    u = a\n    return g(u)", "d t g", ""),
    "function before its global": ("def f():\n    return x\nf()\nx = 1", "", "x"),
    "function after its global": ("def f():\n    return x\nx = 1\nf()", "", ""),
    "functions before a global": (
        "def f():\n    return x\ndef g():\n    return f()\nmap(g, [])\nx = 1",
        "map",
        "x",
    ),
    "method before its global": (
        "class A:\n    def f(self):\n        return x\nA().f()\nx = 1",
        "",
        "x",
    ),
    "suppresses": ("with suppress(E):\n    x = f()\nx", "suppress E f", "x"),
    "leaves a loop": ("for i in r:\n    break\nelse:\n    x = 1\nx", "r", "x"),
    "ends a loop": ("for i in r:\n    i\nelse:\n    x = 1\nx", "r", ""),
    "leaves while": ("while a:\n    break\nelse:\n    x = 1\nx", "a", "x"),
    "or": ("a or (x := 1)\nx", "a", "x"),
    "first of or": ("(x := 1) or a\nx", "a", ""),
    "one way of an expression": ("(x := 1) if a else 0\nx", "a", "x"),
    "both ways of an expression": ("(x := 1) if a else (x := 0)\nx", "a", ""),
    "compares": ("a < b < (x := 1)\nx", "a b", "x"),
    "asserts": ("assert a, (x := 1)\nx", "a", "x"),
    "finally": ("try:\n    x = f()\nfinally:\n    x", "f", "x"),
    "after finally": ("try:\n    x = f()\nfinally:\n    y = 1\nx, y", "f", ""),
    "function and a sometimes global": ("def f():\n    return x\nif a:\n    x = 1", "a", "x"),
    "class": ("class A(B, k=m):\n    y = x\n    z = y\n    def f(self):\n        w", "B m x w", ""),
    "decorated": ("@d(a)\ndef f(): ...", "d a", ""),
    "match": ("match v:\n    case [a, *b]:\n        a, b, c", "v c", ""),
    "await": ("await f(x)", "f x", ""),
    "deletes": ("x = 1\ndel x\nx", "", "x"),
    "annotates": ("x: t\nx", "t x", ""),
    "line magic": ("%time y = f(x)", "", "x f y"),
    "shell": ("!echo {x} $y z", "", "x y"),
    "cell magic": ("%%time\nf(x)", "f x", ""),
    "another language": ("%%bash\necho $x", "", ""),
}


@pytest.mark.parametrize(("cell", "surely", "maybe"), CELLS.values(), ids=CELLS)
def test_names_a_cell_reads(cell: str, surely: str, maybe: str) -> None:
    found = used(*check_syntax(InteractiveShell.instance(), dedent(cell)))
    ours = {"get_ipython"}
    assert set(found.surely) - ours == set(surely.split())
    assert set(maybe.split()) <= set(found.maybe)
    if "%" not in cell:
        assert set(found.maybe) == set(maybe.split())
