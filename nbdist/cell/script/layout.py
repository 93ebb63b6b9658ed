"""A cell's lines inside a script: indented, within a function where it awaits; line for line."""

from __future__ import annotations

import ast
import io
import symtable
import tokenize

from nbdist.errors import UsageError

INDENT = "    "


def indented(source: str) -> str:
    """Indent code by one step; what lies inside a string of several lines stays as it is."""
    inside: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind.endswith("STRING_START"):  # of f-strings, since Python 3.12
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
    """Return whether code has an ``await`` of its own, outside any function."""
    try:
        compile(source, "<cell>", "exec", dont_inherit=True)
    except SyntaxError:
        return True
    return False


def in_function(source: str, name: str) -> tuple[str, str]:
    """Return the head of a coroutine function, and code as its body that binds the same globals.

    Raises
    ------
    UsageError
        If the code cannot stand in a function.
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
    """Take away annotations of the code's own variables: a function cannot have them on globals."""
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
    """Return the statements that are not in functions or classes, later ones of a line first."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            found = [*_own(child), *found, child] if isinstance(child, ast.stmt) else found
    return sorted(found, key=lambda each: -getattr(each, "col_offset", 0))
