"""Finds the names that a cell reads without binding them first."""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.rank.running.lines import PYTHON_MAGICS
from nbdist.rank.values.annotations import names_in_expression
from nbdist.rank.values.evaluated_texts import read_in_call
from nbdist.rank.values.pickles import global_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

WORD = re.compile(r"[^\W\d]\w*")
EXPANDED = re.compile(r"\{([^{}]*)\}|\$(\w+)")
"""Variables that IPython expands in the text of a magic or a shell command."""
EXTENDED = dis.opmap["EXTENDED_ARG"]
GLOBAL = dis.opmap["STORE_GLOBAL"]
STORES = frozenset({dis.opmap["STORE_NAME"], GLOBAL})

SWALLOW = {"suppress", "raises"}
"""Functions whose context managers end errors in their blocks."""


@dataclass
class Used:
    """The names that a cell reads, in their order."""

    surely: dict[str, None] = field(default_factory=dict)
    maybe: dict[str, None] = field(default_factory=dict)
    """Names that only some branches of the cell bind before they are read."""
    mentions: dict[str, None] = field(default_factory=dict)
    """Names in annotations that Python does not evaluate: who reads annotations later may."""


def used(source: str, code: CodeType) -> Used:
    """Return the names that a cell reads.

    Parameters
    ----------
    source
        The Python code that IPython has made from the cell.
    code
        The same, compiled.
    """
    found = Used()
    lazy = bool(code.co_flags & __future__.annotations.compiler_flag)
    reader = _Reader(found, definitions(code), evaluates_annotations=not lazy)
    try:
        tree = ast.parse(source)
        reader.visit(tree)
        found.mentions = _in_annotations(tree, lazy=lazy)
    except RecursionError:  # an expression of a thousand terms
        return Used(maybe=dict.fromkeys(mentioned(code)))
    for name in read_later(code):
        reader.read(name)
    found.maybe = {name: None for name in found.maybe if name not in found.surely}
    others = {*found.surely, *found.maybe, *bound(code)}
    found.mentions = {name: None for name in found.mentions if name not in others}
    return found


def _in_annotations(tree: ast.AST, *, lazy: bool) -> dict[str, None]:
    """Return the names that the annotations of a cell mention and Python does not evaluate."""
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr):
                names = names_in_expression(part, strings_only=not lazy)
                found.update(dict.fromkeys(names))
    return found


def mentioned(code: CodeType) -> Iterator[str]:
    """Yield every name that occurs in a cell, as a variable or an attribute."""
    yield from code.co_names
    for part in code.co_consts:
        if inspect.iscode(part):
            yield from mentioned(part)
        elif isinstance(part, str):  # the text of a magic
            yield from WORD.findall(part)


def annotating(code: CodeType) -> Iterator[str]:
    """Yield the names in annotations that are strings, and the words in other tuples of strings."""
    for part in code.co_consts:
        if inspect.iscode(part):
            yield from annotating(part)
        elif isinstance(part, tuple):
            yield from WORD.findall(" ".join(each for each in part if isinstance(each, str)))


def read_later(code: CodeType) -> list[str]:
    """Return the globals that the functions in a code object read when they are called."""
    if code.co_flags & inspect.CO_OPTIMIZED:
        return global_names(code)
    inner = (const for const in code.co_consts if inspect.iscode(const))
    return [name for part in inner for name in read_later(part)]


def bound(code: CodeType) -> Iterator[str]:
    """Yield the names that a cell binds itself."""
    extended = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if operation == EXTENDED:
            extended = (extended | argument) << 8
            continue
        if operation in STORES:
            yield code.co_names[extended | argument]
        extended = 0


def bound_anywhere(code: CodeType) -> Iterator[str]:
    """Yield the names that a cell binds, also those that its functions declare `global`."""
    yield from bound(code)
    inner = [const for const in code.co_consts if inspect.iscode(const)]
    while inner:
        part = inner.pop()
        inner += [const for const in part.co_consts if inspect.iscode(const)]
        if GLOBAL in part.co_code[::2]:
            found = dis.get_instructions(part)
            yield from (each.argval for each in found if each.opcode == GLOBAL)


def definitions(code: CodeType) -> dict[str, list[str]]:
    """Return the functions and classes that a cell defines, each with the globals it reads."""
    return {part.co_name: read_later(part) for part in code.co_consts if inspect.iscode(part)}


class _Reader(ast.NodeVisitor):
    """Visits the code that a cell runs at once, in order, without the bodies of functions."""

    def __init__(
        self, found: Used, defined: dict[str, list[str]], *, evaluates_annotations: bool
    ) -> None:
        self._found, self._evaluates = found, evaluates_annotations
        self._defined = defined
        """The functions and classes of the cell, with the globals that they read when called."""
        self._bound: set[str] = set()
        """Names bound on all branches so far."""
        self._perhaps: set[str] = set()
        """Names bound on some branch so far."""

    def read(self, name: str) -> None:
        """Record that `name` is read here."""
        if name not in self._bound:
            (self._found.maybe if name in self._perhaps else self._found.surely)[name] = None

    def _read_behind(self, name: str) -> None:
        """Record what a function of the cell reads that may be called here."""
        todo, seen = [name], {name}
        while todo:
            each = todo.pop()
            if each not in self._bound:
                self._found.maybe[each] = None
            else:
                new = [one for one in self._defined.get(each, ()) if one not in seen]
                seen.update(new)
                todo += new

    def _bind(self, name: str) -> None:
        self._bound.add(name)
        self._perhaps.add(name)

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Forget names bound meanwhile, which are in a scope of their own."""
        kept = set(self._bound), set(self._perhaps)
        yield
        self._bound, self._perhaps = kept

    def _ways(self, *ways: Iterable[ast.AST | None]) -> None:
        """Visit alternative blocks, of which one is run."""
        before, after = set(self._bound), []
        for way in ways:
            self._bound = set(before)
            self._all(way)
            after.append(self._bound)
        self._bound = set.intersection(*after)

    # -- expressions ---------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read(node.id)
            self._read_behind(node.id)
        elif isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        else:
            self.read(node.id)  # a name must have a value to be deleted
            self._bound.discard(node.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._all([node.value, node.target])

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and _is_ipython(node.func.value):
            for name in _names_in_magic(node.func.attr, [_text(arg) for arg in node.args]):
                # A word of a magic's text may not be a variable: no error if it cannot be sent.
                if name not in self._bound:
                    self._found.maybe[name] = None
        for name in read_in_call(node):
            if name not in self._bound:
                self._found.maybe[name] = None

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._all([*node.args.defaults, *node.args.kw_defaults])

    def _comprehension(self, node: Any, *parts: ast.expr) -> None:
        self.visit(node.generators[0].iter)
        with self._apart():
            for i, each in enumerate(node.generators):
                self._all([each.iter if i else None, each.target, *each.ifs])
            self._all(parts)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node, node.elt)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node, node.elt)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node, node.elt)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node, node.key, node.value)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._ways(node.values[1:], [])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._ways([node.body], [node.orelse])

    def visit_Compare(self, node: ast.Compare) -> None:
        self._all([node.left, node.comparators[0]])
        self._ways(node.comparators[1:], [])

    # -- statements ----------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        self._all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read(node.target.id)
        self._all([node.value, node.target])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._all([node.annotation if self._evaluates else None, node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [each for each in (arguments.vararg, arguments.kwarg) if each]
        self._all([*node.decorator_list, *arguments.defaults, *arguments.kw_defaults])
        if self._evaluates:
            self._all([*(each.annotation for each in every), node.returns])
        self._bind(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all([*node.decorator_list, *node.bases, *node.keywords])
        with self._apart():
            self._all(node.body)
        self._bind(node.name)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._ways(node.body, node.orelse)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self._ways([node.msg], [])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._ways([node.target, *node.body], [])
        self._else_of_loop(node)

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._ways(node.body, [])
        self._else_of_loop(node)

    def _else_of_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        leaves = any(isinstance(each, ast.Break) for part in node.body for each in ast.walk(part))
        self._ways(node.orelse, *([[]] if leaves else []))

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self._all(node.items)
        managers = [getattr(item.context_expr, "func", None) for item in node.items]
        names = {getattr(each, "attr", getattr(each, "id", "")) for each in managers}
        self._ways(node.body, *([[]] if names & SWALLOW else []))

    visit_AsyncWith = visit_With  # noqa: N815

    def visit_Try(self, node: Any) -> None:
        before = set(self._bound)
        self._ways([*node.body, *node.orelse], *([handler] for handler in node.handlers))
        after, self._bound = self._bound, before
        self._all(node.finalbody)
        self._bound |= after

    visit_TryStar = visit_Try  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._all([node.type])
        if node.name:
            self._bind(node.name)
        self._all(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self._ways([], *([case] for case in node.cases))

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic_visit(node)
        if node.name:
            self._bind(node.name)

    visit_MatchStar = visit_MatchAs  # noqa: N815

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self._bind(node.rest)


def _is_ipython(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "get_ipython"


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _names_in_magic(method: str, texts: list[str]) -> list[str]:
    """Return the words in a magic or a shell command that may be variables."""
    text = "\n".join(texts)
    if method in ("run_line_magic", "run_cell_magic") and texts and texts[0] in PYTHON_MAGICS:
        return WORD.findall(text)
    return [word for found in EXPANDED.findall(text) for word in WORD.findall(" ".join(found))]
