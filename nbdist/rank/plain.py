"""Cells that are plain Python, which IPython need not read character by character."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

from IPython.core.inputtransformer2 import TransformerManager

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

PROMPT = "In ["
"""Pasted with a prompt, code may be Python by chance; IPython takes the prompt away."""
_KINDS = ("cleanup_transforms", "line_transforms", "token_transformers")
harmless: list[object] = [each for kind in _KINDS for each in getattr(TransformerManager(), kind)]
"""Transformers that leave alone what is Python already: IPython's own, and ours."""


def transformed(shell: InteractiveShell, code: str) -> str:
    """Return the Python that IPython makes of a cell; what is Python already it leaves as it is.

    Its transformers know that only after they have taken the whole cell apart, in Python: of a cell
    with 200 lines that takes 10 ms, and the compiler needs 1.

    Raises
    ------
    SyntaxError
        If a transformer refuses the cell.
    """
    if PROMPT not in code and _nobody_else_looks(shell) and _is_python(code):
        return code if code.endswith("\n") else f"{code}\n"
    return str(shell.transform_cell(code))


def _nobody_else_looks(shell: InteractiveShell) -> bool:
    """Whether no transformer of the user's or an extension's wants to see every cell."""
    used = shell.input_transformer_manager
    lists = [shell.input_transformers_post, *(getattr(used, kind) for kind in _KINDS)]
    return all(each in harmless for transformers in lists for each in transformers)


def _is_python(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever compiles it warns
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            compile(code, "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return not code[:1].isspace()
