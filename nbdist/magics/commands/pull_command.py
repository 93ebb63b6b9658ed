"""``%dist pull``: copies variables of the ranks to the notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.magics.parsing.arguments import Paths, ranks_list
from nbdist.magics.parsing.command import names_of_ranks, say, say_if_waiting, set_offer
from nbdist.notebook import current_cluster
from nbdist.notebook.returned_names import bound_as
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
    names = parser.add_argument(
        "names", action=Paths, metavar="NAME",
        help="variables of the ranks; trainer.model is bound to the name model",
    )  # fmt: skip
    set_offer(names, names_of_ranks)


def pull(args: argparse.Namespace) -> None:
    """Bind variables of the ranks in the notebook."""
    cluster = current_cluster.cluster()
    say_if_waiting(args.ranks)
    found = {rank: cluster.fetch(args.names, rank) for rank in args.ranks}
    bound = found[args.ranks[0]]
    if len(found) > 1:
        bound = {path: {rank: found[rank][path] for rank in found} for path in args.names}
    cluster.names_between.bind(bound, namespace())
    say(f"Bound in the notebook: {', '.join(map(bound_as, args.names))}.")
