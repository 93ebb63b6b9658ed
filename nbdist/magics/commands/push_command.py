"""``%dist push``: copies variables of the notebook to the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.magics.parsing.arguments import Names, UsageMistake, ranks_list
from nbdist.magics.parsing.command import say, say_if_waiting
from nbdist.notebook import current_cluster
from nbdist.rank.values.pickles import namespace

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(push, "bind variables of the notebook on the ranks: %%dist push x y")
    parser.add_argument("--ranks", type=ranks_list, metavar="0,2-3", help="only to these ranks")
    parser.add_argument("names", action=Names, metavar="NAME", help="variables of the notebook")


def push(args: argparse.Namespace) -> None:
    """Bind variables of the notebook on the ranks, and replace variables of the same names."""
    space = namespace()
    missing = [name for name in args.names if name not in space]
    if missing:
        msg = f"the notebook has no variable `{missing[0]}`"
        raise UsageMistake(msg)
    cluster = current_cluster.cluster()
    say_if_waiting(args.ranks)
    for line in cluster.send({name: space[name] for name in args.names}, args.ranks):
        say(line)
