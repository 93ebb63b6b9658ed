"""Recognizes a cell that starts its own workers (``mp.spawn``, ``notebook_launcher``)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SPAWN = ("mp.spawn", "multiprocessing.spawn")
"""Torch's function, by the last two parts of the name in the call."""
LAUNCHERS = ("notebook_launcher", "debug_launcher", "DistributedDataParallelEngine")
"""Functions of accelerate, and an engine for Catalyst's `runner.train`."""
STRATEGIES = ("ddp_spawn", "ddp_fork", "ddp_notebook")
"""Lightning's strategies, or their beginnings."""


class Made(NamedTuple):
    """The call that starts workers."""

    by: str
    line: int
    """The line in the notebook's cell."""


def makes_workers(tree: ast.AST) -> Made | None:
    """Return the first call in a cell that starts workers with their own group, or None."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    spawns = {*_imported(tree)}
    found = [Made(by, call.lineno) for call in calls if (by := _by(call, spawns))]
    return min(found, key=lambda made: made.line, default=None)


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names under which ``torch.multiprocessing.spawn`` is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "torch.multiprocessing":
            yield from (each.asname or each.name for each in node.names if each.name == "spawn")


def _by(call: ast.Call, spawns: set[str]) -> str:
    """Return how to name a call that starts workers; '' for other calls."""
    name = ast.unparse(call.func) if isinstance(call.func, (ast.Name, ast.Attribute)) else ""
    *_, last = parts = name.split(".")
    if name in spawns or ".".join(parts[-2:]) in SPAWN or last in LAUNCHERS:
        return name
    for word in call.keywords:
        value = word.value.value if isinstance(word.value, ast.Constant) else None
        if word.arg == "strategy" and isinstance(value, str) and value.startswith(STRATEGIES):
            return f'strategy="{value}"'
        if word.arg == "ddp" and value is True and name.endswith(".train"):  # Catalyst's runners
            return f"{name}(ddp=True)"
    return ""
