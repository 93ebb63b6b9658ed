"""Tab completion of the magics' flags, their values, and ``%dist``'s commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.completer import SimpleCompletion, completion_matcher

from nbdist.magics.dist import COMMANDS
from nbdist.magics.distributed import DistributedMagics

if TYPE_CHECKING:
    import argparse

    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell


def add_completer(shell: InteractiveShell) -> None:
    """Teach IPython's completer our magics."""
    shell.Completer.custom_matchers.append(match)


def remove_completer(shell: InteractiveShell) -> None:
    """Take them from it."""
    shell.Completer.custom_matchers.remove(match)


@completion_matcher(identifier="nbdist", api_version=2)
def match(context: CompletionContext) -> SimpleMatcherResult:
    """Offer what fits on a line of our magics, and nothing else there."""
    before = context.text_until_cursor.removesuffix(context.token).split()
    fitting = [text for text in _offers(before, context) if text.startswith(context.token)]
    return {
        "completions": [SimpleCompletion(text) for text in fitting],
        "matched_fragment": context.token,
        "ordered": True,
        "suppress": True,
        "do_not_suppress": set(),
    }


def _offers(before: list[str], context: CompletionContext) -> list[str]:
    first_line = context.cursor_line == 0
    if before[:1] == ["%%distributed"] and first_line:
        return _of(DistributedMagics.distributed.parser, before)
    if before == ["%dist"]:
        return sorted(COMMANDS)
    if before[:1] == ["%dist"] and before[1] in COMMANDS:
        return _of(COMMANDS[before[1]].parser, before)  # type: ignore[attr-defined]
    return []


def _of(parser: argparse.ArgumentParser, before: list[str]) -> list[str]:
    """Return a flag's allowed values right after it, else all flags."""
    for action in parser._actions:  # argparse has no public list
        if before[-1] in action.option_strings:
            return [str(choice) for choice in action.choices or []]
    return [flag for action in parser._actions for flag in action.option_strings]
