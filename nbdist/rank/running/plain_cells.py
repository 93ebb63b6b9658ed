"""Skips IPython's slow transformation for cells that are plain Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from IPython.core.inputtransformer2 import TransformerManager

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_KINDS = ("cleanup_transforms", "line_transforms", "token_transformers")
harmless: list[object] = [each for kind in _KINDS for each in getattr(TransformerManager(), kind)]
"""Transformers, IPython's and ours, that change nothing in code that `_SPECIAL` does not match."""
_SPECIAL = re.compile(
    r"""
    \A\s                                 # an empty line first, or an indent: removed
    | ^\s* ([%!?,;/] | >>> | \.\.\.)        # magics, commands, help, calls, Python's prompts
    | ^\s* (\[(ins|nav)\])? \s* In\ \[      # IPython's prompt
    | \? [^\S\n]* (\#.*)? $              # help
    | = \s* [%!]                         # x = %magic, x = !command
    | [\r\v\f\x1c-\x1e\x85\u2028\u2029]  # line ends only for `splitlines`
    """,
    re.MULTILINE | re.VERBOSE,
)


def transformed(shell: InteractiveShell, code: str) -> str:
    """Return the Python code that IPython makes of a cell.

    IPython's transformers tokenize the whole cell, 10 ms for 200 lines, even if there is nothing to
    transform. A cell without IPython syntax is returned as it is.

    Raises
    ------
    SyntaxError
        If a transformer refuses the cell.
    """
    if _has_lines(code) and _only_known_transformers(shell) and not _SPECIAL.search(code):
        return code if code.endswith("\n") else f"{code}\n"
    return str(shell.transform_cell(code))


def _has_lines(code: str) -> bool:
    """Whether there are several lines: a single one may be a macro, or a magic without `%`."""
    return "\n" in code[:-1]


def _only_known_transformers(shell: InteractiveShell) -> bool:
    """Whether there are no further transformers, of the user's or of an extension."""
    used = shell.input_transformer_manager
    lists = [shell.input_transformers_post, *(getattr(used, kind) for kind in _KINDS)]
    return all(each in harmless for transformers in lists for each in transformers)
