"""``%dist sync``: copies models from one rank to all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.job.named_ranks import show_ranks
from nbdist.magics.parsing.arguments import Words
from nbdist.magics.parsing.command import names_of_ranks, say, say_if_waiting, set_offer
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(sync, "give all ranks one rank's model: %%dist sync model --from 0")
    parser.add_argument(
        "--from", dest="source", type=int, default=0, metavar="RANK",
        help="the rank whose values are copied (default: 0)",
    )  # fmt: skip
    names = parser.add_argument(
        "names", action=Words, metavar="NAME",
        help="models, optimizers, schedulers, gradient scalers or tensors, by their variables or "
        "as attributes such as trainer.model; their values on the other ranks are overwritten",
    )  # fmt: skip
    set_offer(names, names_of_ranks)


def sync(args: argparse.Namespace) -> None:
    """Copy models from one rank to all others."""
    say_if_waiting()
    for name in args.names:
        cluster = current_cluster.cluster()
        ranks = cluster.sync(name, args.source)
        where = "all ranks" if len(ranks) == cluster.np else f"ranks {show_ranks(ranks)}"
        say(f"`{name}` is now on {where} as it was on rank {args.source}.")
