"""Runs a cell as a script of its own, under torchrun, horovodrun or plain Python."""

from __future__ import annotations

import ast
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.cell.definitions.defined import cell_number
from nbdist.cell.script.make_script import ScriptOptions, make_script
from nbdist.cell.script.own_workers import makes_workers
from nbdist.errors import UsageError
from nbdist.hub.running.launch_plan import SCRIPT
from nbdist.hub.running.launch_request import LaunchRequest, script_launcher
from nbdist.launchers.scripts import torchrun
from nbdist.launchers.scripts.hosts import hosts_named
from nbdist.launchers.scripts.launcher import Elastic
from nbdist.machine import gpus
from nbdist.machine.amounts import counted
from nbdist.magics.commands.attach_command import note_detached
from nbdist.magics.parsing.arguments import LAUNCHER_FLAGS, UsageMistake
from nbdist.magics.showing.job_output import notice
from nbdist.notebook import current_cluster, script_cells
from nbdist.notebook.detached_jobs import detach
from nbdist.notebook.session import Wish, session

if TYPE_CHECKING:
    import argparse

    from nbdist.cell.names.wanted_names import Parsed
    from nbdist.job.job import Job

FLAGS = {
    "cold": ("--cold", "torchrun", "horovodrun", "python"),
    "max_restarts": ("--max-restarts", "torchrun"),
    "hosts": ("-H", "torchrun", "horovodrun"),
    "hostfile": ("--hostfile", "torchrun", "horovodrun"),
    "min_np": ("--min-np", "torchrun", "horovodrun"),
    "max_np": ("--max-np", "torchrun", "horovodrun"),
    "host_discovery_script": ("--host-discovery-script", "horovodrun"),
    "launcher_flags": (LAUNCHER_FLAGS, "torchrun", "horovodrun"),
}
"""Flags that only some launchers have: the flag, and these launchers."""


def launches_script(args: argparse.Namespace, wish: Wish) -> bool:
    """Whether a cell with these flags runs as a script, not on the engines.

    Raises
    ------
    UsageMistake
        If the flags do not go together.
    """
    launcher = current_cluster.wished(wish).launcher or "engines"
    for name, (flag, *launchers) in FLAGS.items():
        if getattr(args, name) not in (None, False, []) and launcher not in launchers:
            needed = " or ".join(launchers)
            raise UsageMistake(f"{flag} is for scripts: it needs --launcher {needed}")
    if launcher == "engines":
        return False
    if args.ranks is not None:
        raise UsageMistake(f"--ranks is for engines: {launcher} runs a script on all its ranks")
    return True


def with_own_workers(args: argparse.Namespace, wish: Wish, parsed: Parsed) -> tuple[Wish, str]:
    """Change the wish of a cell that makes its own workers; return it, with a text that says so.

    Such a cell runs as one program: ranks, and torchrun's environment variables, would disturb its
    workers.
    """
    named = wish.launcher is not None or wish.backend is not None or args.ranks is not None
    made = None if named else makes_workers(ast.parse(parsed.source))
    if made is None:
        return wish, ""
    what = f"`{made.by}` (cell line {made.line}) makes its own workers"
    if wish.np is not None:
        return wish, (
            f"{what}, on each of the {counted(wish.np, 'rank')}; without -np the cell is one "
            "program (--launcher python)."
        )
    return replace(wish, launcher="python", backend="none"), (
        f"{what}: the cell runs as one program, not on ranks (--launcher python; another launcher "
        "can be named)."
    )


def check_detached(args: argparse.Namespace, wish: Wish) -> Wish:
    """Return the wish of a cell; a job that is to be detached gets a launcher of scripts.

    Raises
    ------
    UsageMistake
        If the job cannot be detached.
    """
    if not args.detach:
        return wish
    if args.background:
        raise UsageMistake("--detach does not wait either: leave out --async")
    if args.save is not None:
        raise UsageMistake("--save runs nothing that could be detached")
    if wish.launcher == "engines":
        raise UsageMistake(
            "--detach is for scripts: engines end with the notebook's kernel. "
            "Use --launcher torchrun or horovodrun"
        )
    now = current_cluster.wished(wish)
    if now.launcher in ("engines", "kernel") and wish.launcher is None:
        wish = replace(wish, launcher=script_launcher(now.backend or "ddp"))
    return wish


def submit_script(
    shell: Any,  # IPython's
    args: argparse.Namespace,
    wish: Wish,
    cell: str,
    parsed: Parsed,
    lines: int,
) -> Job | None:
    """Make a script of a cell and launch it; return its job, None if the job is detached.

    Raises
    ------
    NbdistError
        If the script cannot be made or launched; nothing was started.
    """
    own = current_cluster.wished(wish).launcher == "python"
    request = _request(args, wish, own=own)
    wish = current_cluster.wished(wish)
    wish = replace(wish, np=request.size(wish.np))
    assert wish.np is not None  # set in the line above
    elastic = elastic_wish(args, wish.np, request.hosts, request.launcher)
    script = make_script(shell, parsed, cell, ScriptOptions(
        name=SCRIPT, saved=False, backend="own" if own else request.backend, np=wish.np,
        forced=args.bring, automatic=not args.no_bring, lines=lines, arguments=args.arguments,
    ))  # fmt: skip
    for note in script.notes:
        notice(note)
    plan = request.plan(script.cell_line, 1 if own else wish.np)
    plan = replace(
        plan, elastic=elastic, environ={**plan.environ, **_with_gpus(wish, request.hosts)},
        output=args.output, timeout=args.timeout, returns=args.returns, cold=args.cold,
        shows_last=script.shows_last, passed_on=args.launcher_flags, arguments=args.arguments,
    )  # fmt: skip
    number = cell_number(shell)
    if args.detach:
        note_detached(
            detach(script, plan, cell, number=number, lines=lines, backend=request.backend)
        )
        return None
    if not own:  # after a program of its own, the next cell is for ranks again
        session.last = wish
    return script_cells.submit(
        script, plan, cell, number=number, lines=lines, viewed=True, background=args.background
    )


def _request(args: argparse.Namespace, wish: Wish, *, own: bool) -> LaunchRequest:
    """Return the launch that a cell's flags ask for.

    Parameters
    ----------
    args, wish
        The flags.
    own
        Whether the cell is a program that makes its own workers.

    Raises
    ------
    UsageError
        If the flags do not fit.
    """
    if own and wish.np is not None:
        raise UsageError(
            "-np is for ranks: a program that makes its own workers (--launcher python) chooses "
            "their number itself"
        )
    now = current_cluster.wished(wish)
    assert now.backend is not None  # a complete wish has both
    assert now.launcher is not None
    if args.max_restarts is not None and args.max_restarts < 0:
        raise UsageError(f"--max-restarts {args.max_restarts} must not be negative")
    wrong = torchrun.refuse(args.launcher_flags) if now.launcher == "torchrun" else ""
    if wrong:
        raise UsageError(f"{LAUNCHER_FLAGS}: {wrong}")
    hosts = hosts_named(args.hosts, args.hostfile)
    return LaunchRequest(wish.np, now.backend, now.launcher, hosts, args.max_restarts or 0)


def _with_gpus(wish: Wish, hosts: dict[str, int]) -> dict[str, str]:
    """Return environment variables for the ranks; each host selects among its own GPUs."""
    if wish.gpus is None or not hosts:
        return gpus.environ_for(wish.gpus, wish.env)
    return {**(wish.env or {}), gpus.CHOSEN: ",".join(map(str, wish.gpus))}


def elastic_wish(
    args: argparse.Namespace, np: int, hosts: dict[str, int], launcher: str
) -> Elastic | None:
    """Return the limits on the number of ranks of an elastic job, None for other jobs.

    Raises
    ------
    UsageError
        If the flags do not fit.
    """
    least, most, script = args.min_np, args.max_np, args.host_discovery_script
    if least is None and most is None and script is None:
        return None
    least = np if least is None else least
    if least < 1:
        raise UsageError(f"--min-np {least}: at least one rank is needed")
    if least > np:
        raise UsageError(f"--min-np {least} is more than -np {np}")
    if most is not None and most < np:
        raise UsageError(f"--max-np {most} is less than -np {np}")
    if launcher == "torchrun":
        if most is not None and most > np:
            raise UsageError(
                f"--max-np {most}: torchrun starts the ranks of -np ({np}), and cannot add ranks "
                "later"
            )
        return Elastic(least)
    if script is not None and hosts:
        raise UsageError("--host-discovery-script names the hosts: leave out -H and --hostfile")
    if script is None and len(hosts) < len(("a host", "another")):
        raise UsageError("--min-np and --max-np need --host-discovery-script, or two hosts in -H")
    path = Path(script or "").expanduser().resolve()
    if script is not None and not (path.is_file() and os.access(path, os.X_OK)):
        raise UsageError(f"--host-discovery-script {script}: no such program (chmod +x?)")
    return Elastic(least, most, str(path) if script else "")
