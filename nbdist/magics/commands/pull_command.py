"""``%dist pull``: copies variables of the ranks to the notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.magics.parsing.arguments import ranks_list
from nbdist.magics.parsing.command import say, say_if_waiting
from nbdist.notebook import current_cluster
from nbdist.rank.values.pickles import namespace

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        pull, "bind variables of the ranks in the notebook: %%dist pull history --ranks 0"
    )
    parser.add_argument(
        "--ranks", type=ranks_list, default=[0], metavar="0,2-3",
        help="from these ranks (default: 0); from several, each name becomes a dict by rank",
    )  # fmt: skip
    parser.add_argument("names", nargs="+", metavar="NAME", help="variables of the ranks")


def pull(args: argparse.Namespace) -> None:
    """Bind variables of the ranks in the notebook."""
    cluster = current_cluster.cluster()
    say_if_waiting(args.ranks)
    found = {rank: cluster.fetch(args.names, rank) for rank in args.ranks}
    bound = found[args.ranks[0]]
    if len(found) > 1:
        bound = {name: {rank: found[rank][name] for rank in found} for name in args.names}
    cluster.names_between.bind(bound, namespace())
    say(f"Bound in the notebook: {', '.join(args.names)}.")
