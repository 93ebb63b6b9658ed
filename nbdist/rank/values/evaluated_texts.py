"""Finds the names in strings that code evaluates: `eval("k")`, pandas' `df.query("a > @k")`."""

from __future__ import annotations

import ast
import re
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

BUILTIN = frozenset({"eval", "exec"})
OF_FRAMES = frozenset({"eval", "query"})
"""Methods of pandas' frames, which read variables behind an `@`."""
AT = re.compile(r"@([^\W\d]\w*)")


def read_in_call(node: ast.Call) -> Iterator[str]:
    """Yield the names in the strings that a call evaluates."""
    builtin = isinstance(node.func, ast.Name) and node.func.id in BUILTIN
    of_frame = isinstance(node.func, ast.Attribute) and node.func.attr in OF_FRAMES
    for argument in node.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield from _read(argument.value, builtin=builtin, of_frame=of_frame)


def read_in_code(code: CodeType, global_names: Collection[str]) -> Iterator[str]:
    """Yield the names in the strings that a function's code, with these globals, may evaluate."""
    builtin = not BUILTIN.isdisjoint(global_names)
    if builtin or not OF_FRAMES.isdisjoint(code.co_names):
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        for text in code.co_consts:
            if isinstance(text, str):
                found = _read(text, builtin=builtin, of_frame=True)
                yield from (name for name in found if name not in own)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from read_in_code(inner, global_names)


def _read(text: str, *, builtin: bool, of_frame: bool) -> Iterator[str]:
    if of_frame:
        yield from AT.findall(text)
    if builtin:
        try:
            nodes = [*ast.walk(ast.parse(text.strip()))]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        yield from (each.id for each in nodes if isinstance(each, ast.Name))
