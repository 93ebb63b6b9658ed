"""Finds from which names a cell makes objects: what these hold may change in the notebook."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def made_from(source: str) -> Iterator[tuple[set[str], set[str]]]:
    """Yield for each statement the names that it binds or changes, and the names that it reads.

    In `nets["a"] = Net(cfg)`, `nets` may hold `cfg` afterwards, and an object of the class `Net`.
    """
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except RecursionError:  # an expression of a thousand terms
        return
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    for statement in sorted(statements, key=lambda node: (node.lineno, node.col_offset)):
        made, read = set[str](), set[str]()
        if isinstance(statement, NAMED):
            made.add(statement.name)
        for node in _without_block(statement):
            if isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
            elif isinstance(getattr(node, "ctx", None), ast.Store):
                made.update(_root(node))
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            made.update(_root(statement.value.func))  # as in `nets.append(Net())`
        if made and read:
            yield made, read


def _without_block(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement's nodes without the statements in its block."""
    todo: list[ast.AST] = [statement]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if not isinstance(node, ast.stmt):
                yield node
                todo.append(node)


def _root(node: ast.AST) -> set[str]:
    """Return the name of the variable whose attribute or item an expression is, if it is one."""
    inner = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    return {inner.id} if isinstance(inner, ast.Name) and inner is not node else set()
