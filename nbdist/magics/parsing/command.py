"""A command of ``%dist``: a function, and the parser that all its help is made from.

Each command has a module of its own with two functions: one that does it, and `add_to`, which says
how it is called, with which arguments, and what Tab offers for them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic_arguments import MagicHelpFormatter

from nbdist.machine.quoted_code import plain
from nbdist.notebook import current_cluster

Run = Callable[[argparse.Namespace], None]
Offer = Callable[[str], list[str]]
"""Returns what Tab offers for what has been typed of a word."""


class Parser(argparse.ArgumentParser):
    """A parser of what stands on a line of a cell: it raises where `argparse` ends the process."""

    def __init__(self, *args: Any, **options: Any) -> None:  # `argparse` makes those of commands
        ours = {"formatter_class": MagicHelpFormatter, "add_help": False, "allow_abbrev": False}
        super().__init__(*args, **options | ours)

    def error(self, message: str) -> NoReturn:
        """Raise what IPython's own parsers raise."""
        raise IPythonUsageError(message)


class Command(NamedTuple):
    """One command."""

    run: Run
    parser: Parser
    passes_on: bool
    """Whether what follows ``--`` on its line is for a cell's program."""


class Commands(Mapping[str, Command]):
    """All commands by name, in the order in which they were added.

    Parameters
    ----------
    name, description
        The magic's, for the help that names all commands.
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
            Does it. The command has the function's name, and the function's docstring as help.
        summary
            What the help of the magic says of it: a few words, and how it is called.
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
    """Have Tab offer something for an argument that is none of a few words."""
    vars(argument)["offer"] = offer


def offer_of(argument: argparse.Action, begun: str) -> list[str]:
    """Return what Tab offers for an argument's value of which this much has been typed."""
    offer: Offer | None = vars(argument).get("offer")
    if offer is not None:
        return offer(begun)
    return [str(choice) for choice in argument.choices or []]


def say(text: str) -> None:
    """Print what a command has to say."""
    print(plain(text))  # this is display code


def tell_of_wait(ranks: list[int] | None = None) -> None:
    """Say that a command has to wait for jobs in the background, if so."""
    jobs = current_cluster.cluster().unfinished(ranks)
    if jobs:
        listed = ", ".join(f"job {job.id}" for job in jobs)
        say(
            f"The ranks are busy: this command waits for {listed}. "
            "An interrupt stops only the waiting."
        )
