"""Finds which names each statement of a cell brings together: one may hold another afterwards."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from nbdist.cell.names.used_names import read_later

if TYPE_CHECKING:
    from collections.abc import Iterator

IMPORTS = (ast.Import, ast.ImportFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
SHOW = frozenset({"print", "display", "len", "repr", "str", "type"})
"""Functions that store nothing."""
READ = frozenset({
    "item", "tolist", "numpy", "detach", "cpu", "keys", "values", "items", "get", "copy", "count",
    "sum", "mean", "std", "max", "min", "norm", "round", "size", "numel", "dim", "format", "join",
    "split", "strip", "upper", "lower", "head", "describe", "parameters", "state_dict",
})  # fmt: skip
"""Methods that store nothing in their arguments."""


class Statement(NamedTuple):
    """What a statement mentions. Any of it may hold any other of it afterwards."""

    names: frozenset[str]
    binds: frozenset[str]
    """Of these, the names that it binds, or of which it sets an attribute or an item."""
    later: frozenset[str]
    """Of these, the names that functions in it read when they are called."""
    is_code: bool
    """Whether what it binds are modules or functions."""


def statements(source: str) -> Iterator[Statement]:
    """Yield the statements of a cell, each without the statements in its block.

    After `nets["a"] = Net(cfg)`, `nets` may hold `cfg`, and an object of the class `Net`.
    """
    try:
        todo = ast.parse(source).body
        for node in todo:  # which grows meanwhile
            if not _only_shows(node):
                yield _statement(node)
            if not isinstance(node, DEFINITIONS):
                todo += [part for part in _inside(node) if isinstance(part, ast.stmt)]
            todo += _in_magic(node)
    except RecursionError:  # an expression of a thousand terms
        return


def _in_magic(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements in the text of a magic, as of `%%time`."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython"))), args=texts)):
            for text in texts:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    with suppress(SyntaxError, ValueError):  # text of another kind
                        yield from ast.parse(text.value).body


def _only_shows(node: ast.stmt) -> bool:
    """Return whether a statement is an expression that stores nothing, as of what it prints."""
    if not isinstance(node, ast.Expr):
        return False
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    binds = any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
    return not binds and all(map(_stores_nothing, calls))


def _stores_nothing(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        return called.attr in READ
    return isinstance(called, ast.Name) and called.id in SHOW


def _statement(node: ast.stmt) -> Statement:
    names, binds, later = set[str](), set[str](), set[str]()
    if isinstance(node, DEFINITIONS):
        later.update(_read_later(ast.Module([node], [])))
        binds.add(node.name)
        names.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
    else:
        for part in (node, *_inside(node)):
            if isinstance(part, ast.Name):
                names.add(part.id)
            elif isinstance(part, (ast.Lambda, ast.GeneratorExp)):
                later.update(_read_later(ast.Expression(part)))
            if part is node or not isinstance(part, ast.stmt):
                binds.update(_bound(part))
    names.discard("get_ipython")
    is_code = isinstance(node, (*IMPORTS, *FUNCTIONS))
    return Statement(frozenset(names | binds | later), frozenset(binds), frozenset(later), is_code)


def _inside(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement's nodes, of its block only the statements themselves."""
    todo: list[ast.AST] = [statement]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            yield node
            if not isinstance(node, ast.stmt):
                todo.append(node)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, or of which it sets an attribute or an item."""
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names):
            yield from (each.asname or each.name.partition(".")[0] for each in names)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.Name() | ast.Attribute() | ast.Subscript() if isinstance(node.ctx, ast.Store):
            inner: ast.AST = node
            while isinstance(inner, (ast.Attribute, ast.Subscript)):
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield inner.id


def _read_later(code: ast.Module | ast.Expression) -> list[str]:
    """Return the globals that the functions in a piece of code read when they are called."""
    mode = "exec" if isinstance(code, ast.Module) else "eval"
    try:
        return read_later(compile(code, "", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True))
    except SyntaxError:  # as for an `await` in what is valid only where it stands
        return [part.id for part in ast.walk(code) if isinstance(part, ast.Name)]
