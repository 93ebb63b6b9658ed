"""Parses the flags of the magics, with errors that help."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic_arguments import argument

from nbdist.backends.choice import FITTING, LAUNCHERS
from nbdist.backends.models.variable_paths import last_name
from nbdist.errors import UsageError
from nbdist.machine.quoted_code import plain
from nbdist.notebook.session import Wish

if TYPE_CHECKING:
    from collections.abc import Callable


DASHES = "--"
"""Separates a magic's flags from the arguments of the cell's program."""
HELP = frozenset({"-h", "--help"})
LAUNCHER_FLAGS = "--launcher-flags"
BETWEEN = re.compile(r"[\s,]+(?![^\[]*\])")
"""What stands between two names; not what stands in brackets."""
RST_BLOCK = "::\n\n  "
"""Text that IPython writes before a magic's usage line, for its manual."""


class UsageMistake(UsageError):
    """An error of usage, shown as one line without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"UsageError: {self}"]


def parse(
    parser: argparse.ArgumentParser, line: str, *, passes_on: bool = True
) -> argparse.Namespace | None:
    """Parse the line of a magic, or of a command; if it asks for help, print that, return None.

    Words after ``--`` are not parsed: they are the `arguments` of the cell's program, if the magic
    passes arguments on.

    Parameters
    ----------
    parser
        The parser, which raises IPython's `UsageError`.
    line
        The text after the magic's or the command's name.
    passes_on
        Whether words after ``--`` are allowed.

    Raises
    ------
    UsageMistake
        If the line is wrong; the message suggests the flag that was probably meant.
    """
    parser.allow_abbrev = False  # IPython makes parsers that would allow it
    own, arguments = _split(line)
    if arguments and not passes_on:
        raise UsageMistake(f"unexpected argument {DASHES!r} (-h explains)")
    if not HELP.isdisjoint(own.split()):
        print(plain(help_text(parser)))  # help is display
        return None
    try:
        return parser.parse_args(_joined(shlex.split(own)), argparse.Namespace(arguments=arguments))
    except (IPythonUsageError, ValueError) as err:
        raise UsageMistake(_helped(str(err), parser, passes_on=passes_on)) from None


def help_text(parser: argparse.ArgumentParser) -> str:
    """Return the text that ``-h`` prints."""
    return parser.format_help().removeprefix(RST_BLOCK)


def _split(line: str) -> tuple[str, list[str]]:
    """Return a line's own flags, and the words that follow ``--``."""
    try:
        words = shlex.split(line)
    except ValueError as err:
        raise UsageMistake(f"{err} in {line.strip()} (words are quoted as in a shell)") from None
    if DASHES not in words:
        return line, []
    end = words.index(DASHES)
    return shlex.join(words[:end]), words[end + 1 :]


def _joined(words: list[str]) -> list[str]:
    """Join each ``--launcher-flags`` and the word after it by ``=``.

    `argparse` would take that word, which begins with a dash, for a flag of ours.
    """
    if LAUNCHER_FLAGS not in words[:-1]:
        return words
    place = words.index(LAUNCHER_FLAGS)
    joined = f"{LAUNCHER_FLAGS}={words[place + 1]}"
    return [*words[:place], joined, *_joined(words[place + 2 :])]


def _helped(message: str, parser: argparse.ArgumentParser, *, passes_on: bool) -> str:
    flags = [flag for action in parser._actions for flag in action.option_strings]
    unknown = re.match(r"unrecognized arguments: (\S+)", message)
    if unknown:
        word = unknown[1].split("=")[0]
        if not word.startswith("-"):
            return f"unexpected argument {unknown[1]!r} (-h explains)"
        near = difflib.get_close_matches(word, flags, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        more = f"; the program's own arguments stand after {DASHES!r}" if passes_on else ""
        return f"unknown flag {word}{hint} (-h lists all){more}"
    return f"{message} (-h explains)"


def ranks_list(text: str) -> list[int]:
    """Read ranks as a person writes them: ``0,2-3``."""
    return _numbers(text, "ranks")


def sizes_list(text: str) -> list[int]:
    """Read numbers of ranks as a person writes them: ``1,2,4``."""
    sizes = _numbers(text, "numbers of ranks", "1,2,4")
    if 0 in sizes:
        msg = f"{text!r}: at least one rank is needed"
        raise argparse.ArgumentTypeError(msg)
    if len(set(sizes)) < len(sizes):
        msg = f"{text!r} names a number of ranks twice"
        raise argparse.ArgumentTypeError(msg)
    return sizes


class Words(argparse.Action):
    """Reads all words behind a flag or a command, with commas or blanks between them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"nargs": "+", **options})

    def __call__(
        self, _parser: object, space: argparse.Namespace, values: Any, _flag: str | None = None
    ) -> None:
        """Add the words to those that the line has named before."""
        words = [word for word in BETWEEN.split(" ".join(values)) if word]
        for word in words:
            self.check(word)
        setattr(space, self.dest, [*(getattr(space, self.dest, None) or ()), *words])

    def check(self, word: str) -> None:
        """Raise if this is not such a word."""

    def refuse(self, why: str) -> NoReturn:
        """Raise with the name of the flag or the argument."""
        raise argparse.ArgumentError(self, why)


class Names(Words):
    """Reads names."""

    def check(self, word: str) -> None:
        """Raise if a word cannot be a variable's name."""
        last = last_name(word)
        if last and last != word:
            self.refuse(f"{word!r} is a part of a value: bind it to a name first: {last} = {word}")
        if not last:
            self.refuse(f"{word!r} is not a name; names are written a,b")


class Paths(Words):
    """Reads names, and paths such as ``trainer.model``."""

    def check(self, word: str) -> None:
        """Raise if what a word leads to has no name by itself."""
        if not last_name(word):
            self.refuse(f"{word!r} is not a name, or a path that ends with one: trainer.model")

    def __call__(self, parser: object, space: argparse.Namespace, *given: Any) -> None:
        """Add the paths; each has a name of its own in the notebook."""
        super().__call__(parser, space, *given)
        paths: dict[str, str] = {}
        for path in getattr(space, self.dest):
            other = paths.setdefault(last_name(path), path)
            if other != path:
                self.refuse(f"{other} and {path} would be bound to the same name")


def words_list(text: str) -> list[str]:
    """Read words as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as err:
        msg = f"{text!r}: {err}"
        raise argparse.ArgumentTypeError(msg) from None


def gpus_list(text: str) -> list[int]:
    """Read GPUs as a person writes them: ``0,2-3``."""
    return _numbers(text, "GPUs")


def seconds(text: str) -> float:
    """Read a duration."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:  # nan, too
        msg = f"{text!r} is not a number of seconds"
        raise argparse.ArgumentTypeError(msg)
    return value


def _numbers(text: str, what: str, such_as: str = "0,2-3") -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        numbers = range(int(span[1]), int(span[2] or span[1]) + 1) if span else ()
        if not numbers:
            msg = f"{text!r} is not a list of {what} such as {such_as}"
            raise argparse.ArgumentTypeError(msg)
        found.extend(numbers)
    return found


def assignment(text: str) -> tuple[str, str]:
    """Read ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        msg = f"{text!r} is not KEY=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return key, value


CLUSTER = (
    argument("-np", type=int, metavar="N", help="number of ranks (default: one per GPU, else 2)"),
    argument("--backend", choices=list(FITTING), help="communication backend (default: ddp)"),
    argument(
        "--launcher", choices=LAUNCHERS,
        help="what runs the cell: engines that stay (default); torchrun or horovodrun, as a "
        "script; python, as a program that makes its own workers; or the notebook's kernel (xla)",
    ),
    argument(
        "--gpus", type=gpus_list, metavar="0,1",
        help="the GPUs to use, as numbers among the visible GPUs",
    ),
    argument(
        "--env", type=assignment, action="append", metavar="KEY=VALUE",
        help="environment variable for the ranks; may be given several times",
    ),
)  # fmt: skip
"""The flags that describe the wanted cluster."""


def cluster_arguments(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that describe the wanted cluster to a magic."""
    for decorate in reversed(CLUSTER):
        magic = decorate(magic)
    return magic


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe the wanted cluster to a command."""
    for each in CLUSTER:
        each.add_to_parser(parser, None)


def wish(args: argparse.Namespace) -> Wish:
    """Return the cluster that a line of flags asks for."""
    env = None if args.env is None else dict(args.env)
    return Wish(args.np, args.backend, args.launcher, args.gpus, env)
