"""Finds the statements in executed cells that define or import a name."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from nbdist.rank.running.lines import PYTHON_MAGICS

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

Defining = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign
STATEMENTS = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.Import, ast.ImportFrom,
)  # fmt: skip


def cell_number(shell: InteractiveShell) -> int:
    """Return the number of the running cell, as the notebook shows it.

    IPython 9.18 increases its count before it runs a cell, older versions afterwards.
    """
    manager = shell.history_manager
    return shell.execution_count if manager is None else len(manager.input_hist_parsed) - 1


@dataclass(frozen=True)
class Definition:
    """A statement of an executed cell that defines a function or a class."""

    number: int
    """The cell's number: ``In [number]``."""
    node: Defining
    text: str
    code: CodeType
    """The code of the function or of the class's body."""

    @property
    def line(self) -> int:
        """The line of the cell on which the text begins."""
        return first_line(self.node)


@dataclass(frozen=True)
class Importing:
    """An import of an executed cell."""

    module: str
    name: str = ""
    """The name imported from the module; '' for the module itself."""


class Notebook:
    """The definitions and imports of all cells executed so far.

    Parameters
    ----------
    shell
        The notebook's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._definitions: dict[str, list[Definition]] = {}
        self._imports: dict[str, list[Importing]] = {}
        flags = shell.compile.flags
        for number, source in enumerate(shell.history_manager.input_hist_parsed):
            self._read(number, source, flags)

    def definitions(self, name: str) -> Iterator[Definition]:
        """Return the definitions of `name`, the latest first."""
        return reversed(self._definitions.get(name, []))

    def imports(self, name: str) -> Iterator[Importing]:
        """Return the imports of `name`, the latest first."""
        return reversed(self._imports.get(name, []))

    def _read(self, number: int, source: str, flags: int) -> None:
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            tree = compile(source, "<cell>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            # Compile each statement by itself, as IPython does: Python 3.11 compiles a call of an
            # imported function differently if the import is in the same module.
            alone = [ast.Module([statement], []) for statement in tree.body]
            codes = [compile(each, "<cell>", "exec", flags, dont_inherit=True) for each in alone]
        except (SyntaxError, ValueError, RecursionError):
            return
        body = _under_magic(tree)
        if body is not None:
            self._read(number, self._shell.transform_cell(body), flags)
            return
        inner = {
            (each.co_name, each.co_firstlineno): each for code in codes for each in _inner(code)
        }
        for node in _statements(tree.body):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._note_import(node)
                continue
            name, key = _defined(node)
            found = inner.get((key, first_line(node)))
            text = _text(source, node)
            if name and found is not None and text:
                made = Definition(number, node, text, found)
                self._definitions.setdefault(name, []).append(made)

    def _note_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                bound = alias.asname or alias.name.partition(".")[0]
                made = Importing(alias.name if alias.asname else bound)
            elif node.level or not node.module:
                continue
            else:
                bound = alias.asname or alias.name
                made = Importing(node.module, alias.name)
            self._imports.setdefault(bound, []).append(made)


def _under_magic(tree: ast.Module) -> str | None:
    """Return the Python code below the cell magic of a cell, None without such a magic."""
    match tree.body:
        case [
            ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(attr="run_cell_magic"),
                    args=[ast.Constant(value=magic), ast.Constant(), ast.Constant(value=cell)],
                )
            )
        ] if magic in PYTHON_MAGICS:
            return str(cell)
        case _:
            return None


def _inner(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if inspect.iscode(const):
            yield const
            if const.co_name == "<module>":
                yield from _inner(const)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions and classes within code."""
    for const in code.co_consts:
        if inspect.iscode(const):
            yield const
            yield from codes_in(const)


def _statements(body: list[ast.stmt]) -> Iterator[Any]:
    """Yield the statements of the notebook's own scope that define or import something."""
    for node in body:
        if isinstance(node, STATEMENTS):
            yield node
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _defined(node: Defining) -> tuple[str, str]:
    """Return the name that a statement defines, and the name of the code it creates."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, "<lambda>" if isinstance(value, ast.Lambda) else ""
        case ast.Assign():
            return "", ""
        case _:
            return node.name, node.name


def first_line(node: Defining) -> int:
    """Return the line where a definition begins, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return decorators[0].lineno if decorators else node.lineno


def _text(source: str, node: Defining) -> str:
    """Return a definition's source with the comments above it; '' if it cannot be extracted."""
    if isinstance(node, ast.Assign):
        text = ast.get_source_segment(source, node) or ""
    else:
        lines = source.split("\n")
        start = first_line(node) - 1
        while start and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        text = textwrap.dedent("\n".join(lines[start : node.end_lineno]))
    try:
        same = ast.dump(ast.parse(text)) == ast.dump(ast.Module([node], []))
    except SyntaxError:
        return ""
    return text if same else ""
