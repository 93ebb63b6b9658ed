"""Follows a path such as `trainer.model` or `nets[0]` from a variable to an object."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def at(namespace: Mapping[str, object], path: str) -> Any:
    """Return the object at a path.

    Raises
    ------
    UsageError
        If there is no object at this path.
    """
    try:
        return _follow(namespace, ast.parse(path, mode="eval").body)
    except (SyntaxError, KeyError, IndexError, AttributeError, TypeError, ValueError):
        raise UsageError(f"there is no variable `{path}` on this rank") from None


def last_name(path: str) -> str:
    """Return the name with which a path ends, to which its object can be bound; '' if none."""
    try:
        node = ast.parse(path, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def has(namespace: Mapping[str, object], path: str) -> bool:
    """Return whether there is an object, other than None, at a path."""
    try:
        return at(namespace, path) is not None
    except UsageError:
        return False


def _follow(namespace: Mapping[str, object], node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return namespace[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_follow(namespace, node.value), node.attr)
    if isinstance(node, ast.Subscript):
        return _follow(namespace, node.value)[ast.literal_eval(node.slice)]
    raise TypeError
