"""Tab completion: flags and commands of the magics, and the ranks' names in a cell's code."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from IPython.core.completer import SimpleCompletion, completion_matcher

from nbdist.errors import NbdistError
from nbdist.magics.commands.auto_command import auto_flags, is_plain
from nbdist.magics.dist import COMMANDS
from nbdist.magics.distributed import DistributedMagics
from nbdist.magics.parsing.arguments import DASHES, ranks_list
from nbdist.magics.parsing.command import offer_of
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

RANKS = re.compile(r"--ranks[ =]\s*(\S+)")


def add_completer(shell: InteractiveShell) -> None:
    """Add our matcher to IPython's completer."""
    shell.Completer.custom_matchers.append(match)


def remove_completer(shell: InteractiveShell) -> None:
    """Remove our matcher from IPython's completer."""
    shell.Completer.custom_matchers.remove(match)


# Before IPython's matcher of dict keys, which would suppress ours.
@completion_matcher(identifier="nbdist", api_version=2, priority=60)
def match(context: CompletionContext) -> SimpleMatcherResult:
    """Complete lines of our magics; in a cell for ranks, add the ranks' names."""
    cell = _for_ranks(context.full_text)
    if _among_arguments(context):
        return _result([], context.token)  # IPython completes files
    before = context.full_text.split("\n")[: context.cursor_line]
    place = sum(len(line) + 1 for line in before) + context.cursor_position
    if cell is not None and place >= cell[1]:
        return _of_ranks(context, place, *cell)
    words = context.text_until_cursor.removesuffix(context.token).split()
    fitting = [text for text in _offers(words, context) if text.startswith(context.token)]
    return _result(list(map(SimpleCompletion, fitting)), context.token, ordered=True, suppress=True)


def _result(
    texts: list[SimpleCompletion],
    fragment: str,
    *,
    ordered: bool = False,
    suppress: bool = False,
) -> SimpleMatcherResult:
    return {
        "completions": texts,
        "matched_fragment": fragment,
        "ordered": ordered,
        "suppress": suppress,
        "do_not_suppress": set(),
    }


def _for_ranks(text: str) -> tuple[str, int] | None:
    """Return the flags of a cell for the ranks and where its code begins; None for other cells."""
    flags_of_all = auto_flags()
    if flags_of_all is not None and is_plain(text):
        return flags_of_all, 0
    head, below, code = text.lstrip("\n").partition("\n")
    magic, _, flags = head.partition(" ")
    return (flags, len(text) - len(code)) if below and magic == "%%distributed" else None


def _among_arguments(context: CompletionContext) -> bool:
    """Whether the cursor is behind the ``--`` of our magics, in the program's arguments."""
    first, *words = context.text_until_cursor.removesuffix(context.token).split() or [""]
    return context.cursor_line == 0 and first in ("%%distributed", "%dist") and DASHES in words


def _of_ranks(
    context: CompletionContext, place: int, flags: str, begin: int
) -> SimpleMatcherResult:
    named, code, cursor = (
        RANKS.search(flags.partition(f" {DASHES} ")[0]),
        context.full_text[begin:],
        place - begin,
    )
    try:
        ranks = ranks_list(named[1]) if named else None
        found = current_cluster.cluster().complete(code, cursor, ranks)
    except (NbdistError, argparse.ArgumentTypeError):
        return _result([], context.token)  # no cluster, or no such rank: the cell will report it
    texts = [SimpleCompletion(text, type=kind) for text, kind in found.texts]
    keys = any(kind == "dict key" for _, kind in found.texts)
    # Keys suppress other matchers: the notebook would add its own files.
    return _result(texts, code[cursor - found.back : cursor], suppress=keys)


def _offers(before: list[str], context: CompletionContext) -> list[str]:
    first_line = context.cursor_line == 0
    if before[:1] == ["%%distributed"] and first_line:
        return _of(DistributedMagics.distributed.parser, before, context.token)
    if before == ["%dist"]:
        return sorted(COMMANDS)
    if before[:1] == ["%dist"] and before[1] in COMMANDS:
        return _of(COMMANDS[before[1]].parser, before, context.token)
    return []


def _of(parser: argparse.ArgumentParser, before: list[str], begun: str) -> list[str]:
    """Return the values of the flag before the cursor, else values of arguments, and all flags."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    for action in shown:  # argparse has no public list
        if before[-1] in action.option_strings and action.nargs != 0:
            return offer_of(action, begun)
    flags = [flag for action in shown for flag in action.option_strings]
    if begun.startswith("-"):
        return flags
    words = [offer_of(action, begun) for action in shown if not action.option_strings]
    return [*(text for offered in words for text in offered), *flags]
