"""Ways from a variable to what it leads to, in words: `trainer.model`, `nets[0]`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def at(namespace: Mapping[str, object], path: str) -> Any:
    """Return what a path leads to.

    Raises
    ------
    UsageError
        If it leads nowhere.
    """
    try:
        return _follow(namespace, ast.parse(path, mode="eval").body)
    except (SyntaxError, KeyError, IndexError, AttributeError, TypeError, ValueError):
        raise UsageError(f"there is no variable `{path}` on this rank") from None


def has(namespace: Mapping[str, object], path: str) -> bool:
    """Return whether a path leads to something."""
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
