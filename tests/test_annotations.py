"""Names that only annotations mention: whoever reads these finds the names as in a plain kernel."""

from __future__ import annotations

import typing
from textwrap import dedent
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbdist.cell.names.used_names import used
from nbdist.magics.distributed import check_syntax
from nbdist.rank.values.annotations import names_mentioned
from tests.helpers.notebook import distributed

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

WAYS = {
    "ranks": "-np 2 --launcher engines --backend none",
    "script": "-np 2 --launcher torchrun --backend none",
}

NOTEBOOK = """
import dataclasses, functools, threading, typing as tp
from typing import Annotated, Any, Callable, Dict, Generic, List, NamedTuple, NewType, Optional
from typing import Protocol, TypedDict, TypeVar
import pydantic, typer

class Leaf: pass
UserId = NewType("UserId", int)
Alias = List[int]
T = TypeVar("T", bound="Leaf")

def quoted(a: "Leaf", b: Optional["Leaf"], c: Callable[["Alias"], "UserId"]) -> "tp.Any": ...
class Tuple(NamedTuple):
    a: "Leaf"
class Dictionary(TypedDict):
    a: "list[Leaf]"
class Form(Protocol):
    a: "Optional[Form]"
class Container(Generic[T]):
    a: "Dict[str, T]"
@dataclasses.dataclass
class Data:
    a: "Leaf"
    b: "Annotated[int, typer.Option('Leaf')]" = 1
    next: "Optional[Data]" = None

class Tree(pydantic.BaseModel):
    size: "int"
    left: "Optional[Tree]" = None
    fruit: "Optional[Fruit]" = None
    later: "Optional[Later]" = None
class Fruit(pydantic.BaseModel):
    sort: str = "apple"

def main(number: "Annotated[int, typer.Argument()]", word: "Optional[str]" = None):
    print(number * 2, word)

lock = threading.Lock()
class Locked:
    def use(self): return lock
def with_lock(a: "Locked"): return a

batch = bytearray(1000)
def of_batch(batch: "batch"): return len(batch)
"""

CELLS = {
    "all kinds": """
        import typing
        for each in (quoted, Tuple, Dictionary, Form, Container, Data):
            print(typing.get_type_hints(each))
        """,
    "pydantic": """
        class Later(pydantic.BaseModel):
            when: int
        print(repr(Tree(size="1", left={"size": 2}, fruit={}, later={"when": 5})))
        """,
    "a command line": """
        import typer
        app = typer.Typer()
        app.command()(main)
        app(["3"], standalone_mode=False)
        """,
    "in the cell itself": """
        import typing
        def ours(a: "Leaf", b: "Optional['UserId']"): ...
        def outer():
            def inner(a: "Alias"): ...
            return inner
        print(typing.get_type_hints(ours), typing.get_type_hints(outer()))
        """,
    "what uses a lock": """
        import typing
        print(typing.get_type_hints(with_lock))
        """,
}


@pytest.fixture(scope="module")
def notebook(shared_kernel: Kernel) -> Kernel:
    """Return a notebook with definitions."""
    shared_kernel.run("%load_ext nbdist")
    shared_kernel.run(NOTEBOOK)
    return shared_kernel


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_annotations_are_evaluated_as_in_a_plain_kernel(
    notebook: Kernel, cell: str, flags: str
) -> None:
    there = notebook.run(distributed(cell, flags)).stdout
    assert there == notebook.run(dedent(cell)).stdout != ""


def test_names_are_told_and_data_are_not_brought(notebook: Kernel) -> None:
    notebook.run("def more(a: 'typer.Context', b: 'Thing'): ...\nclass Thing: ...")
    cell = notebook.run(distributed("print(of_batch([1]), more)", WAYS["ranks"]))
    assert "of_batch (function), more (function), Thing (class).\n" in cell.text.replace(
        "typer (module), ", ""
    )
    assert "batch (" not in cell.text.replace("of_batch", "")


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_with_the_future_import(notebook: Kernel, flags: str) -> None:
    try:
        notebook.run(
            "from __future__ import annotations\nfrom typing import Set\n"
            "@dataclasses.dataclass\nclass Args:\n    tags: Set[str]\n"
            "def held(a: lock) -> Args: ..."
        )
        cell = "import typing\nprint(typing.get_type_hints(Args))\ndef f(a: lock, b: Nowhere): ..."
        told = notebook.run(distributed(f"{cell}\nprint(f.__annotations__)", flags)).stdout
        assert told == "{'tags': typing.Set[str]}\n{'a': 'lock', 'b': 'Nowhere'}\n"
        told = notebook.run(distributed("print(held.__name__)", flags)).stdout
        assert told == "held\n", "a lock cannot travel, and nobody needs it"
    finally:
        notebook.run("get_ipython().compile.reset_compiler_flags()")


TEXTS = {
    "strings": (
        "def f(a: 'A', b: B['C', 1], *c: 'list[\"D\"]', **d: 'x y') -> 'E.F': ...", "A C D E list",
    ),
    "literals": ("a: Literal['A']\nb: 'typing.Literal[\"B\"]'\nc: Annotated['C', 'D']", "C typing"),
    "within functions": ("def f():\n    def g(a: 'A'): ...\n    b: 'B' = 1", "A B"),
    "classes": ("class A:\n    b: 'A'\n    def c(self, d: 'D'): ...", "D"),
    "bound by the cell": ("class A: ...\ndef f(a: 'A'): ...", ""),
    "with the future import": (
        "from __future__ import annotations\nclass A:\n    b: B\ndef f(a: C = d) -> E[F]: ...",
        "B C E F",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("becomes_main")
@pytest.mark.parametrize(("cell", "mentions"), TEXTS.values(), ids=TEXTS)
def test_names_that_a_cell_mentions(cell: str, mentions: str) -> None:
    found = used(*check_syntax(InteractiveShell.instance(), cell))
    assert set(found.mentions) == set(mentions.split())


def test_names_inside_of_what_typing_makes() -> None:
    def function() -> None: ...

    assert isinstance(function, FunctionType)
    optional: Any = typing.Optional
    function.__annotations__ = {
        "a": optional["A.B"],
        "b": typing.Callable[[optional["B"]], "C"],  # noqa: F821
        "c": typing.Literal["no"],
    }
    assert set(names_mentioned(function)) == set("ABC")
