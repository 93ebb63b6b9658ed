"""The magics: argument parsing and help; each is a thin call on the Python API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.magics.commands.auto_command import add_auto, remove_auto
from nbdist.magics.dist import DistMagics
from nbdist.magics.distributed import DistributedMagics
from nbdist.magics.own_values import add_look, remove_look
from nbdist.magics.parsing.arguments import parse
from nbdist.magics.px_magics import register_px, unregister_px
from nbdist.magics.showing.background import add_display, remove_display
from nbdist.magics.tab_completion import add_completer, remove_completer
from nbdist.notebook.session import session

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def register(shell: InteractiveShell) -> None:
    """Register the magics."""
    shell.register_magics(DistributedMagics, DistMagics)
    register_px(shell)
    add_completer(shell)
    add_display(shell)
    add_look(shell)
    add_auto(shell, lambda flags: parse(DistributedMagics.distributed.parser, flags))


def unregister(shell: InteractiveShell) -> None:
    """End the clusters and remove the magics."""
    session.end()
    remove_auto(shell)
    remove_completer(shell)
    remove_display(shell)
    remove_look(shell)
    unregister_px(shell)
    for kind, name in (("cell", "distributed"), ("line", "distributed"), ("line", "dist")):
        shell.magics_manager.magics[kind].pop(name, None)
