"""Which parts of a definition's source are read when it is run, and which when it is called."""

from __future__ import annotations
import __future__

import ast
from types import CodeType


def flags_of(futures: set[str]) -> int:
    """Return the compiler's flags for what a script imports from `__future__`."""
    flags = 0
    for each in futures:
        flags |= getattr(__future__, each).compiler_flag
    return flags


def functions_in(code: CodeType) -> list[CodeType]:
    """Return the code of the functions that are defined when this code runs."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return [
        each for part in inner for each in ([part] if part.co_flags & 1 else functions_in(part))
    ]  # fmt: skip


class _AtOnce(ast.NodeTransformer):
    """Removes from a definition everything that is not evaluated when it is run."""

    def __init__(self, *, annotations: bool) -> None:
        self._annotations = annotations

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        if not self._annotations:
            node.returns = None
            for each in ast.walk(node.args):
                if isinstance(each, ast.arg):
                    each.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if not self._annotations:
            node.annotation = ast.Constant(value=None)
        return node


def evaluated_at_once(text: str, *, annotations: bool) -> str:
    """Return what of a definition is evaluated when the definition is run."""
    return ast.unparse(_AtOnce(annotations=annotations).visit(ast.parse(text)))


def called_names(text: str) -> set[str]:
    """Return the names in the calls and decorators of code, their arguments included."""
    parts: list[ast.AST] = []
    for node in ast.walk(ast.parse(text)):
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.Call):
            parts.append(node)
    return {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}


def dotted_names(node: ast.AST, modules: dict[str, str]) -> list[str]:
    """Return the dotted name of a node that is an attribute of a module, as a list."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in modules or not parts:
        return []
    parts.reverse()
    return [".".join([modules[node.id], *parts])]
