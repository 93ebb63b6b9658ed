"""A command of ``%dist``: a function, and the parser that all its help is made from.

Each command has its own module with two functions: one carries out the command, and `add_to` adds
it with its arguments and their completions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic_arguments import MagicHelpFormatter

from nbdist.errors import NbdistError
from nbdist.machine.quoted_code import plain
from nbdist.notebook import current_cluster

Run = Callable[[argparse.Namespace], None]
Offer = Callable[[str], list[str]]
"""Returns completions for the beginning of a word."""


class Parser(argparse.ArgumentParser):
    """A parser for a line of a cell: it raises errors, while `argparse` ends the process."""

    def __init__(self, *args: Any, **options: Any) -> None:  # `argparse` makes subparsers
        ours = {"formatter_class": MagicHelpFormatter, "add_help": False, "allow_abbrev": False}
        super().__init__(*args, **options | ours)

    def error(self, message: str) -> NoReturn:
        """Raise the same exception as IPython's own parsers."""
        raise IPythonUsageError(message)


class Command(NamedTuple):
    """One command."""

    run: Run
    parser: Parser
    passes_on: bool
    """Whether words after ``--`` on its line are for a cell's program."""


class Commands(Mapping[str, Command]):
    """All commands by name, in the order in which they were added.

    Parameters
    ----------
    name, description
        The name and the description of the magic, for the help that lists all commands.
    """

    def __init__(self, name: str, description: str) -> None:
        self.parser = Parser(name, description=description)
        self._parsers = self.parser.add_subparsers(
            title="commands", metavar="COMMAND", required=True
        )
        self._commands: dict[str, Command] = {}

    def add(self, run: Run, summary: str, *, passes_on: bool = False) -> Parser:
        """Add a command; return its parser, for its arguments.

        Parameters
        ----------
        run
            Carries out the command. Its name and docstring are the command's name and help.
        summary
            A few words for the magic's list of commands, and an example.
        passes_on
            See `Command`.
        """
        name = run.__name__
        parser = self._parsers.add_parser(name, help=summary, description=run.__doc__)
        self._commands[name] = Command(run, parser, passes_on)
        return parser

    def __getitem__(self, name: str) -> Command:
        return self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def set_offer(argument: argparse.Action, offer: Offer) -> None:
    """Set the completions of an argument that has no fixed choices."""
    vars(argument)["offer"] = offer


def names_of_ranks(begun: str) -> list[str]:
    """Return names on the ranks, and paths, that begin so; none if there is no cluster."""
    try:
        found = current_cluster.cluster().complete(begun, len(begun))
    except NbdistError:
        return []
    before = begun[: len(begun) - found.back]
    return [before + text for text, kind in found.texts if kind != "keyword"]


def offer_of(argument: argparse.Action, begun: str) -> list[str]:
    """Return completions for an argument's value that begins so."""
    offer: Offer | None = vars(argument).get("offer")
    if offer is not None:
        return offer(begun)
    return [str(choice) for choice in argument.choices or []]


def say(text: str) -> None:
    """Print a command's message."""
    print(plain(text))  # this is display code


def say_if_waiting(ranks: list[int] | None = None) -> None:
    """Print that a command has to wait for background jobs, if there are any."""
    jobs = current_cluster.cluster().unfinished(ranks)
    if jobs:
        listed = ", ".join(f"job {job.id}" for job in jobs)
        say(
            f"The ranks are busy: this command waits for {listed}. "
            "An interrupt stops only the waiting."
        )
