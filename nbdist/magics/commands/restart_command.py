"""``%dist restart``: replaces ranks, or the kernel, by new processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython

from nbdist.hub.link.forming import restarted
from nbdist.magics.parsing.arguments import UsageMistake, ranks_list
from nbdist.magics.parsing.command import say, say_if_waiting
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands

KERNEL = "kernel"
NOT_COPIED = (
    "Not copied is what cells have set in the process itself: the states of random generators "
    "(seed them again), `os.environ`, torch's default dtype, the working directory."
)


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        restart,
        "restart ranks in new processes: %%dist restart 1 --like 0; or this notebook's kernel: "
        "%%dist restart kernel",
    )
    parser.add_argument(
        "--like", type=int, metavar="RANK", help="copy this rank's variables to the new processes"
    )
    parser.add_argument(
        "ranks", nargs="?", type=_ranks_or_kernel, metavar="RANKS",
        help="which ranks, such as 1 or 0,2-3, all by default; or `kernel`: the notebook's own "
        "process",
    )  # fmt: skip


def restart(args: argparse.Namespace) -> None:
    """Restart ranks in new processes; the others keep their variables."""
    if args.ranks == KERNEL:
        say(_restart_kernel())
        return
    say_if_waiting()
    cluster = current_cluster.cluster()
    lacking = cluster.restart(args.ranks, like=args.like)
    for rank, names in sorted(lacking.items()):
        say(restarted(rank, names))
        for name, why in names.items():
            if why:
                say(f"  {name}: {why}")
    if args.like is not None and lacking:
        say(NOT_COPIED)
    if not lacking:
        say("All ranks were restarted; their variables are lost.")
    for note in cluster.notes():
        say(note)


def _ranks_or_kernel(text: str) -> list[int] | str:
    """Read a list of ranks, or the word ``kernel`` for the notebook's own process."""
    return KERNEL if text == KERNEL else ranks_list(text)


def _restart_kernel() -> str:
    """End this kernel so that its server restarts it; return a message for the user.

    Raises
    ------
    UsageMistake
        If this process is not a kernel.
    """
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        raise UsageMistake(
            "this is IPython in a terminal, not a kernel: exit and start IPython again"
        )
    kernel.do_shutdown(restart=True)
    return (
        "The kernel ends now, and with it all variables of the notebook. JupyterLab and Notebook "
        "restart it within seconds; elsewhere, start it from the menu."
    )
