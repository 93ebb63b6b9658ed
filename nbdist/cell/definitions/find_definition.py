"""Finds the definition that, run again, would re-create the notebook's value of a name."""

from __future__ import annotations

import ast
from typing import Any

from nbdist.cell.definitions.compared_classes import ClassComparison
from nbdist.cell.definitions.compared_functions import Comparison
from nbdist.cell.definitions.defined import Notebook
from nbdist.cell.definitions.definition_text import Remade
from nbdist.cell.definitions.expressions import Again


def remade(
    name: str, value: Any, notebook: Notebook, again: Again, *, annotations: bool
) -> Remade | None:
    """Return the definition of `name`; None if no definition would re-create its value.

    Parameters
    ----------
    name
        The name.
    value
        The notebook's value of this name.
    notebook
        The definitions in the notebook's cells.
    again
        Evaluates expressions of definitions.
    annotations
        Whether annotations are evaluated, too.
    """
    edited = None
    for definition in notebook.definitions(name):
        made = Remade(definition)
        try:
            _compare(Comparison(made, notebook, again, annotations=annotations), made, value)
        except Exception:  # noqa: S112  # Unsure, or an error of a user's object
            continue
        if made.is_as_it_was:
            return made
        edited = edited or made
    return edited


def _compare(whole: Comparison, made: Remade, value: Any) -> None:
    """Raise `Unsure` if the definition would create something else."""
    node, code = made.definition.node, made.definition.code
    match node:
        case ast.ClassDef(name=name):
            ClassComparison(whole, node, code, value, name).compare()
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            whole.decorated(node, code, value, name, {})
        case ast.Assign(targets=[ast.Name(id=name), *_], value=ast.Lambda() as function):
            whole.function(function, code, value, "<lambda>", {}, path=name)
