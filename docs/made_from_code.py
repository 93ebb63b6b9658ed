"""A Sphinx extension: pages of the reference, made from the code each time the site is built.

A page has a line ``<!-- made: flags -->`` where the text is to stand.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbdist
from nbdist.magics.dist import COMMANDS
from nbdist.magics.distributed import DistributedMagics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

MARK = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)
SETTING = re.compile(r"NBDIST_\w+: ")


def setup(app: Sphinx) -> dict[str, Any]:
    """Take part in a build."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", always_read)
    return {"parallel_read_safe": True}


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put into a page what is made for it."""
    del app, page
    source[0] = MARK.sub(lambda mark: MAKERS[mark[1]](), source[0])


def always_read(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """Name the pages that are to be read again whether their own text has changed or not."""
    del app
    return [page for page in env.found_docs if MARK.search(env.doc2path(page).read_text())]


def flags() -> str:
    """Return all flags of ``%%distributed``."""
    return options(DistributedMagics.distributed.parser)


def commands() -> str:
    """Return all commands of ``%dist``, with their flags."""
    found = ((name, command.parser) for name, command in COMMANDS.items())
    return "\n\n".join(
        f"## `%dist {name}`\n\n{inspect.cleandoc(parser.description)}\n\n{options(parser)}"
        for name, parser in found
        if parser.description
    )


def options(parser: argparse.ArgumentParser) -> str:
    """Return what a parser takes, as a list of definitions."""
    taken = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # noqa: SLF001
    return "\n\n".join(f"{written(action)}\n: {said(parser, action)}" for action in taken)


def written(action: argparse.Action) -> str:
    """Return how an argument is written: ``--ranks 0,2-3``."""
    value = action.metavar
    if value is None and action.nargs != 0:
        value = "|".join(action.choices or [action.dest.upper()])
    shown = str(value or "")
    if action.nargs in ("*", "+"):
        shown += " ..."
    if action.nargs == "?":
        shown = f"[{shown}]"
    return ", ".join(f"`{flag} {shown}`".replace(" `", "`") for flag in action.option_strings) or (
        f"`{shown}`"
    )


def said(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return what an argument's help says, as a sentence."""
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return sentence(text)


def settings() -> str:
    """Return all variables of the environment that are there for users to set."""
    modules = sorted(Path(nbdist.__file__).parent.rglob("*.py"))
    return "\n\n".join(itertools.chain.from_iterable(map(settings_of, modules)))


def settings_of(module: Path) -> Iterator[str]:
    """Return those of a module: what is assigned above a text such as ``NBDIST_HOME: where``."""
    for node in ast.walk(ast.parse(module.read_text())):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
        for before, text in itertools.pairwise(body):
            match text:
                case ast.Expr(ast.Constant(str(what))) if SETTING.match(what):
                    name, _, meaning = " ".join(what.split()).partition(": ")
                    yield f"`{name}`\n: {sentence(meaning)}{default(before)}"


def default(assigned: ast.stmt) -> str:
    """Return what a setting is where nobody sets it, if that is a number."""
    match assigned:
        case ast.AnnAssign(value=ast.Constant(int() | float() as value)):
            return f" The default is {value:g}."
    return ""


def sentence(text: str) -> str:
    """Return a text as a sentence."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def face() -> str:
    """Return the functions and classes that ``nbdist`` has."""
    return documented(nbdist, ":members:", ":inherited-members:")


def loops() -> str:
    """Return what ``nbdist.loops`` has; the methods are for the libraries that call them."""
    return documented(nbdist.loops)


def quantization() -> str:
    """Return what ``nbdist.quantization`` has."""
    return documented(nbdist.quantization)


def documented(module: ModuleType, *of_classes: str) -> str:
    """Return what has autodoc describe a module's public names."""
    names = [name for name in module.__all__ if not name.startswith(("__", "load_"))]
    return "\n\n".join(
        directive(f"{module.__name__}.{name}", *of_classes if name[0].isupper() else ())
        for name in sorted(names, key=str.lower)
    )


def directive(name: str, *asked: str) -> str:
    """Return the lines that have autodoc describe one name."""
    kind = "autoclass" if name.rpartition(".")[2][0].isupper() else "autofunction"
    lines = ["```{eval-rst}", f".. {kind}:: {name}", *(f"   {line}" for line in asked), "```"]
    return "\n".join(lines)


MAKERS = {make.__name__: make for make in (flags, commands, settings, face, loops, quantization)}
