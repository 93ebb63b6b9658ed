"""``%%distributed --save FILE`` writes the cell as a script; nothing is run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.cell.script.make_script import Script, ScriptOptions, make_script
from nbdist.cell.script.preamble import launch_line
from nbdist.errors import NbdistError, UsageError
from nbdist.machine.amounts import in_bytes
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.magics.showing.job_output import notice
from nbdist.notebook import current_cluster
from nbdist.notebook.session import Wish

if TYPE_CHECKING:
    import argparse

    from nbdist.cell.names.wanted_names import Parsed


def save(
    shell: Any,
    args: argparse.Namespace,
    wish: Wish,
    parsed: Parsed,
    cell: str,
    lines: int,
) -> None:
    """Write the cell to the file that `--save` names, and print how to run it.

    Parameters
    ----------
    shell
        The notebook's IPython shell.
    args
        The flags.
    wish
        The cluster that the flags ask for; none needs to run.
    parsed, cell, lines
        The parsed cell; its text; how many lines of the notebook's cell come before the text.

    Raises
    ------
    UsageMistake
        If the cell cannot be a script or the file cannot be written; no file is left then.
    """
    path = Path(args.save).expanduser()
    try:
        if path.suffix != ".py":
            raise UsageError(f"--save writes a Python script: {path.name!r} should end in .py")
        _check_alone(args)
        now = current_cluster.wished(wish)
        backend = "own" if now.launcher == "python" else now.backend or "ddp"
        script = make_script(shell, parsed, cell, ScriptOptions(
            name=path.name, saved=True, backend=backend, np=now.np or 1, forced=args.bring,
            automatic=not args.no_bring, lines=lines, arguments=args.arguments,
        ))  # fmt: skip
        script.write(path)
    except NbdistError as err:
        raise UsageMistake(str(err)) from err
    launch = launch_line(backend, now.np or 1, str(path), args.arguments)
    environ = "".join(f"{key}={shlex.quote(value)} " for key, value in (now.env or {}).items())
    print(_how_to_run(script, path, environ + launch))
    for note in script.notes:
        notice(note)


def _check_alone(args: argparse.Namespace) -> None:
    """Raise `UsageError` for flags that need a cell that is run."""
    flags = {"--return": args.returns, "--ranks": args.ranks, "--async": args.background}
    for flag, value in flags.items():
        if value:
            raise UsageError(f"{flag} is for a cell that is run, and --save runs nothing")


def _how_to_run(script: Script, path: Path, launch: str) -> str:
    """Describe what was written, and how to start it."""
    size = sum(len(content) for content in script.data.values())
    data = f" and {path.with_name(script.folder)}/ ({in_bytes(size)})" if script.data else ""
    without = ", also without nbdist" if script.without_nbdist else ""
    return f"Wrote {path}{data}. To run it{without}:\n    {launch}"
