"""``%dist``: the table of its commands, and how one is called."""

from __future__ import annotations

import difflib

from IPython.core.magic import Magics, line_magic, magics_class

from nbdist.errors import Interrupted, NbdistError, RankError
from nbdist.magics.commands import (
    attach_command,
    auto_command,
    cancel_command,
    free_command,
    interrupt_command,
    jobs_command,
    logs_command,
    preload_command,
    pull_command,
    push_command,
    restart_command,
    stacks_command,
    start_command,
    status_command,
    stop_command,
    sync_command,
    tensorboard_command,
    who_command,
)
from nbdist.magics.parsing.arguments import HELP, UsageMistake, help_text, parse
from nbdist.magics.parsing.command import Commands, say

COMMANDS = Commands("dist", "Look at the cluster and steer it; each command has its own `-h`.")
for _module in (
    status_command,
    start_command,
    stop_command,
    restart_command,
    interrupt_command,
    cancel_command,
    logs_command,
    stacks_command,
    jobs_command,
    attach_command,
    sync_command,
    push_command,
    pull_command,
    who_command,
    free_command,
    preload_command,
    auto_command,
    tensorboard_command,
):
    _module.add_to(COMMANDS)


@magics_class
class DistMagics(Magics):
    """The line magic."""

    @line_magic
    def dist(self, line: str) -> None:
        """Call a command."""
        name, _, rest = line.strip().partition(" ")
        if name in ("", *HELP):
            say(help_text(COMMANDS.parser))
            return
        command = COMMANDS.get(name)
        if command is None:
            raise UsageMistake(_unknown(name))
        try:
            args = parse(command.parser, rest, passes_on=command.passes_on)
            if args is not None:
                command.run(args)
        except (UsageMistake, RankError, Interrupted):
            raise
        except NbdistError as err:
            raise UsageMistake(str(err)) from err


# For `%dist?` and IPython's manual. IPython does this itself for parsers that it makes.
DistMagics.dist.__doc__ = COMMANDS.parser.format_help()


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"%dist knows no {name!r}{hint} It knows {', '.join(COMMANDS)}."
