"""Whether a cell is a program that makes its own workers, as its text shows."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SPAWN = ("mp.spawn", "multiprocessing.spawn")
"""torch's, by the last two parts of the names it is called by."""
LAUNCHERS = ("notebook_launcher", "debug_launcher", "DistributedDataParallelEngine")
"""accelerate's; what Catalyst's `runner.train` takes for an engine."""
STRATEGIES = ("ddp_spawn", "ddp_fork", "ddp_notebook")
"""Lightning's, or how they begin."""


class Made(NamedTuple):
    """Where workers are made."""

    by: str
    line: int
    """Of the notebook's cell."""


def makes_workers(tree: ast.AST) -> Made | None:
    """Return what in a cell makes workers that form a group of their own, None if nothing does."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    spawns = {*_imported(tree)}
    found = [Made(by, call.lineno) for call in calls if (by := _by(call, spawns))]
    return min(found, key=lambda made: made.line, default=None)


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names that torch's function has after ``from torch.multiprocessing import``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "torch.multiprocessing":
            yield from (each.asname or each.name for each in node.names if each.name == "spawn")


def _by(call: ast.Call, spawns: set[str]) -> str:
    """Return what a call that makes workers is called, '' of all others."""
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
