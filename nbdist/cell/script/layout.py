"""Indents a cell for a script, in a coroutine function if it awaits; keeps the line count."""

from __future__ import annotations

import ast
import io
import symtable
import tokenize

from nbdist.errors import UsageError

INDENT = "    "


def indented(source: str) -> str:
    """Indent code by one step, except the lines inside multi-line strings."""
    inside: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind.endswith("STRING_START"):  # f-strings, since Python 3.12
            opened.append(token.start[0])
        elif kind.endswith("STRING_END"):
            inside.update(range(opened.pop() + 1, token.end[0] + 1))
    lines = source.split("\n")
    inside |= {n + 2 for n, line in enumerate(lines) if line.endswith("\\") and n + 1 in inside}
    return "\n".join(
        line if not line.strip() or number in inside else INDENT + line
        for number, line in enumerate(lines, 1)
    )


def awaits(source: str) -> bool:
    """Return whether code has an ``await`` outside any function."""
    try:
        compile(source, "<cell>", "exec", dont_inherit=True)
    except SyntaxError:
        return True
    return False


def in_function(source: str, name: str) -> tuple[str, str]:
    """Return the head and body of a coroutine function that runs code and binds its globals.

    Raises
    ------
    UsageError
        If the code is not valid in a function.
    """
    source = _without_annotations(source)
    body = indented(source)
    try:
        table = symtable.symtable(f"async def {name}():\n{body}\n    pass\n", "<cell>", "exec")
    except SyntaxError as err:
        raise UsageError(
            f"a cell that awaits cannot be put into a script as it is: {err.msg} (line "
            f"{err.lineno} of the cell)"
        ) from None
    function = table.get_children()[0]
    bound = sorted(each.get_name() for each in function.get_symbols() if each.is_local())
    lines = [f"async def {name}():"]
    if bound:
        lines.append(f"{INDENT}global {', '.join(bound)}")
    return "\n".join(lines), body


def _without_annotations(source: str) -> str:
    """Remove annotations of the code's variables: a function cannot annotate globals."""
    lines = source.split("\n")
    for node in _own(ast.parse(source)):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.lineno != node.annotation.end_lineno:
            raise UsageError(
                f"line {node.lineno} of the cell: write the annotation on one line, or leave it out"
            )
        raw = lines[node.lineno - 1].encode()
        after = raw[node.annotation.end_col_offset :].decode()
        end = node.target.end_col_offset if node.value else node.target.col_offset
        lines[node.lineno - 1] = raw[:end].decode() + ("" if node.value else "pass") + after
    return "\n".join(lines)


def _own(node: ast.AST) -> list[ast.AST]:
    """Return the statements outside functions and classes; on one line the last comes first."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            found = [*_own(child), *found, child] if isinstance(child, ast.stmt) else found
    return sorted(found, key=lambda each: -getattr(each, "col_offset", 0))
