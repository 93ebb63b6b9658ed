"""Finds the names that annotations mention: in strings, and inside what `typing` has made.

Python does not evaluate these when a function or class is defined. Whoever reads annotations later
does: `typing.get_type_hints`, dataclasses, pydantic, command lines, `functools.singledispatch`.
"""

from __future__ import annotations

import ast
import functools
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef

from nbdist.rank.values.kinds import attribute

if TYPE_CHECKING:
    from collections.abc import Iterator

LITERAL, ANNOTATED = "Literal", "Annotated"
DEEPEST = 10
"""The most levels of `typing`'s objects that are looked through."""


@functools.lru_cache(10_000)
def names_in_text(text: str) -> tuple[str, ...]:
    """Return the names in an annotation that is a string; none if it is not Python."""
    try:
        found = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(dict.fromkeys(names_in_expression(found)))


def names_in_expression(node: ast.AST, *, strings_only: bool = False) -> Iterator[str]:
    """Yield the names in an annotation, also those in strings within it.

    Parameters
    ----------
    node
        The annotation, or a part of it.
    strings_only
        Whether to leave out names outside of strings, which Python evaluates at once.
    """
    match node:
        case ast.Name(id=name) if not strings_only:
            yield name
        case ast.Constant(value=str(text)):
            yield from names_in_text(text)
        case ast.Subscript(value=value) if _ends_with(value, LITERAL):
            yield from names_in_expression(value, strings_only=strings_only)
        case ast.Subscript(value=value, slice=ast.Tuple(elts=[first, *more])) if _ends_with(
            value, ANNOTATED
        ):
            for part in (value, first):
                yield from names_in_expression(part, strings_only=strings_only)
            names = (n for part in more for n in ast.walk(part) if isinstance(n, ast.Name))
            yield from () if strings_only else (each.id for each in names)  # strings are data here
        case _:
            for child in ast.iter_child_nodes(node):
                yield from names_in_expression(child, strings_only=strings_only)


def _ends_with(node: ast.expr, name: str) -> bool:
    return name in (getattr(node, "id", ""), getattr(node, "attr", ""))


def names_mentioned(annotated: FunctionType | type) -> dict[str, None]:
    """Return the names that the annotations of a function or class mention."""
    found: dict[str, None] = {}
    for annotation in _annotations(annotated):
        found.update(dict.fromkeys(_names_in(annotation, DEEPEST)))
    return found


def _annotations(annotated: FunctionType | type) -> Iterator[Any]:
    if sys.version_info >= (3, 14):  # all annotations are evaluated when they are read
        import annotationlib

        annotate = getattr(annotated, "__annotate__", None)
        yield from getattr(attribute(annotate, "__code__"), "co_names", ())
        how = annotationlib.Format.FORWARDREF
        yield from annotationlib.get_annotations(annotated, format=how).values()
    else:
        own = vars(annotated) if isinstance(annotated, type) else None
        now = annotated.__annotations__ if own is None else own.get("__annotations__")
        if isinstance(now, dict):
            yield from now.values()


def _names_in(annotation: Any, depth: int) -> Iterator[str]:
    if isinstance(annotation, str):
        yield from names_in_text(annotation)
    elif isinstance(annotation, ForwardRef):
        yield from names_in_text(annotation.__forward_arg__)
    elif isinstance(annotation, (list, tuple)):  # the parameters of a Callable
        for part in annotation if depth else ():
            yield from _names_in(part, depth - 1)
    elif _is_typing(annotation) and depth:
        for where in ("__args__", "__bound__", "__constraints__"):
            yield from _names_in(getattr(annotation, where, None), depth - 1)


def _is_typing(annotation: Any) -> bool:
    """Return whether an object may have annotations inside; the strings of a Literal are none."""
    ours = type(annotation).__module__ in ("typing", "types", "typing_extensions")
    return ours and attribute(attribute(annotation, "__origin__"), "_name") != LITERAL


def is_data(value: object) -> bool:
    """Return whether a value would hardly stand in an annotation: a batch, for `x: "batch"`."""
    if isinstance(value, (type, ModuleType)):
        return False
    torch = sys.modules.get("torch")
    kinds = (list, dict, set, bytes, bytearray, *((torch.nn.Module,) if torch else ()))
    return isinstance(value, kinds) or hasattr(type(value), "__array__")
