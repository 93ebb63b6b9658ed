"""``%%distributed``: runs a cell on every rank."""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from nbdist.cell.definitions.defined import cell_number
from nbdist.cell.names.wanted_names import FUTURES, Parsed, parsed, wanted_on_ranks
from nbdist.errors import NbdistError, UsageError
from nbdist.job.named_ranks import name_ranks
from nbdist.job.output import OUTPUTS
from nbdist.magics.cell_as_script import (
    check_detached,
    launches_script,
    submit_script,
    with_own_workers,
)
from nbdist.magics.cell_in_kernel import check_flags, run_inside
from nbdist.magics.cell_saved import save
from nbdist.magics.cell_scaled import check_alone, run_series
from nbdist.magics.parsing.arguments import (
    LAUNCHER_FLAGS,
    Names,
    Paths,
    UsageMistake,
    cluster_arguments,
    parse,
    ranks_list,
    seconds,
    sizes_list,
    wish,
    words_list,
)
from nbdist.magics.returnable import check_returned, kept_names
from nbdist.magics.showing.background import Follower
from nbdist.magics.showing.job_output import notice, show
from nbdist.magics.showing.starting import says_that_it_waits
from nbdist.notebook import current_cluster
from nbdist.notebook.cell_options import CellOptions
from nbdist.notebook.returned_names import FromScript, bind_returned
from nbdist.notebook.session import Wish, session
from nbdist.rank.running.lines import align
from nbdist.rank.running.plain_cells import transformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.job.job import Job
    from nbdist.notebook.returned_names import Between


class CellSyntaxError(UsageError):
    """The cell does not parse; nothing was sent to the ranks."""

    def __init__(self, message: str, traceback: list[str]) -> None:
        super().__init__(message)
        self._traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return [*self._traceback, "Nothing was sent to the ranks."]


@magics_class
class DistributedMagics(Magics):
    """The cell magic."""

    @magic_arguments("%distributed")
    @cluster_arguments
    @argument("--ranks", type=ranks_list, metavar="0,2-3", help="run on these ranks only")
    @argument("--timeout", type=seconds, metavar="S", help="interrupt the cell after S seconds")
    @argument(
        "--output", choices=OUTPUTS, default="rank0",
        help="show rank zero (default), all ranks with labels, or equal lines once",
    )  # fmt: skip
    @argument(
        "--bring", action=Names, default=[], metavar="NAMES",
        help="bring these names of the notebook, and replace the values that the ranks have",
    )  # fmt: skip
    @argument("--no-bring", action="store_true", help="bring no other names of the notebook")
    @argument(
        "--return", dest="returns", action=Paths, default=[], metavar="NAMES",
        help="after the cell, bind these names in the notebook to the values of rank zero; "
        "trainer.model is bound to the name model",
    )  # fmt: skip
    @argument(
        "--async", dest="background", action="store_true",
        help="do not wait for the end: output goes on in this cell, and its value is the job",
    )  # fmt: skip
    @argument(
        "--detach", action="store_true",
        help="start a job (a script) that outlives the notebook; `%%dist attach` shows it",
    )  # fmt: skip
    @argument(
        "--scale", type=sizes_list, metavar="1,2,4",
        help="run the cell once on each of these numbers of ranks, and compare its throughput",
    )  # fmt: skip
    @argument(
        "-H",
        dest="hosts",
        metavar="HOST:SLOTS,...",
        help="hosts that run a script's ranks, reached by ssh",
    )
    @argument("--hostfile", metavar="FILE", help="a file of such hosts, with lines HOST slots=N")
    @argument(
        "--min-np",
        type=int,
        metavar="N",
        help="a script goes on without ranks that die, as long as N are left",
    )
    @argument("--max-np", type=int, metavar="N", help="horovodrun: the job may grow to N ranks")
    @argument(
        "--host-discovery-script", metavar="FILE",
        help="horovodrun: a program that prints the present hosts, a HOST:SLOTS on each line",
    )  # fmt: skip
    @argument(
        "--max-restarts", type=int, metavar="N", help="how often a script that fails is restarted"
    )
    @argument(
        LAUNCHER_FLAGS, type=words_list, default=[], metavar="'FLAGS'",
        help="more flags for torchrun or horovodrun, in quotes",
    )  # fmt: skip
    @argument(
        "--cold",
        action="store_true",
        help="launch a script by the plain command line, which imports all libraries anew",
    )
    @argument("--whole-cell", action="store_true", help=argparse.SUPPRESS)  # for `%dist auto`
    @argument(
        "--save", metavar="FILE",
        help="run nothing; write the cell and what it uses as a script for use without nbdist",
    )  # fmt: skip
    @line_cell_magic
    def distributed(self, line: str, cell: str | None = None) -> Job | None:
        """Run this cell on every rank of the cluster, which the first such cell starts.

        The output of rank zero appears here as it comes; `%dist logs RANK` prints all output of a
        rank. Variables stay on the ranks between cells. On every rank `rank`, `local_rank`,
        `world_size` and `device` are defined, and with `--backend ddp` the process group is
        formed. Names of the notebook that the cell uses and the ranks lack are brought to the
        ranks, and brought again when the notebook has bound them anew. Flags of the cluster that
        are left out keep their last value.

        The words after ` -- ` are arguments for the program in the cell, as for a script: they are
        in `sys.argv`, where `parser.parse_args()` looks. `-- --epochs 3 --name "two words"`

        With `--async` the cell is over at once and its job goes on; the value is the job, with
        `wait()`, `done` and `cancel()`. `%dist jobs` lists all jobs. Names of `--return` are bound
        by `wait()`, or before the next cell that begins after the job's end.

        With `--detach` the cell becomes a job of its own that goes on when the kernel ends:
        `%dist jobs` lists the job in any notebook, and `%dist attach` shows all its output.

        With `--backend xla` the cell runs in this kernel, once, as one program for all of XLA's
        devices (SPMD); `mesh` is defined, too.

        With `--scale 1,2,4` the cell runs on one rank, then on two, then on four, always on new
        ranks. A table and a picture compare samples per second, speed-up and efficiency, and show
        where the time of a step goes. The figures come from the `nbdist.progress` loop that takes
        most time, without the first half of its steps; `nbdist.jobs()[-1].scaling` has them.
        """
        assert self.shell is not None
        return run_cell(self.shell, line, cell)


def run_cell(shell: InteractiveShell, line: str, cell: str | None) -> Job | None:
    """Run a cell as ``%%distributed`` does; return its job if it stays in the background.

    Parameters
    ----------
    shell
        The notebook's shell.
    line
        The flags.
    cell
        The cell's text below the line of flags.

    Raises
    ------
    UsageMistake, CellSyntaxError
        If nothing could be started.
    RankError, Interrupted
        If the cell failed, or was stopped.
    """
    args = parse(DistributedMagics.distributed.parser, line)
    if args is None:
        return None
    if cell is None:
        msg = (
            "%%distributed stands on the first line of a cell, and the code to run stands below it"
        )
        raise UsageMistake(msg)
    check_alone(args)
    parsed = check_syntax(shell, cell, lines_before(args))
    check_returned(shell, cell, parsed, args.returns)
    wanted, told = with_own_workers(args, wish(args), parsed)
    wanted = check_detached(args, wanted)
    if told:
        notice(told)
    if _runs_inside(wanted):
        check_flags(args)
        launches_script(args, wanted)  # raises for flags that only scripts can have
        run_inside(shell, args, wanted, cell, lines_before(args))
        return None
    if args.save is not None:
        save(shell, args, wanted, parsed, cell, lines_before(args))
        return None

    def run(np: int | None) -> Job | None:
        return _run(shell, args, replace(wanted, np=np), cell, parsed)

    if args.scale is not None:
        run_series(args, wanted, run, on_engines=not launches_script(args, wanted))
        return None
    job = run(wanted.np)
    return job if args.background else None


def _run(
    shell: InteractiveShell, args: argparse.Namespace, wanted: Wish, cell: str, parsed: Parsed
) -> Job | None:
    """Start a cell's job and show it; return the job, None if it is detached."""
    since = time.time()
    try:
        try:
            job, between = _submit(shell, args, wanted, cell, parsed)
        except NbdistError as err:
            raise UsageMistake(str(err)) from err
        return None if job is None else _see_to(shell, args, job, between)
    except KeyboardInterrupt:
        _end_what_began(shell, args, since)
        raise


def _runs_inside(wish: Wish) -> bool:
    """Whether a cell runs in the kernel's process."""
    try:
        return current_cluster.wished(wish).launcher == "kernel"
    except UsageError as err:
        raise UsageMistake(str(err)) from err


def _see_to(shell: InteractiveShell, args: argparse.Namespace, job: Job, between: Between) -> Job:
    """Show a job to its end, or in the background; bind the names that it returns."""

    def bind(tell: Callable[[str], Any]) -> None:
        try:
            bind_returned(between, job, shell.user_ns, tell)
        except UsageError as err:
            raise UsageMistake(str(err)) from err

    if args.background:
        Follower(shell, job, bind)
        return job
    try:
        show(shell, job)
    except UsageError as err:
        raise UsageMistake(str(err)) from err
    bind(notice)
    return job


def _end_what_began(shell: InteractiveShell, args: argparse.Namespace, since: float) -> None:
    """Stop a job that a cell had started when an interrupt came before the job was shown."""
    for job in session.jobs():
        # A job that has ended, but not by the interrupt, was shown.
        if job.created >= since and (not job.done or job.state == "interrupted"):
            job.abandon()
            if not args.background:
                show(shell, job)


def _submit(
    shell: InteractiveShell, args: argparse.Namespace, wanted: Wish, cell: str,
    parsed: Parsed,
) -> tuple[Job | None, Between]:  # fmt: skip
    """Start a cell's job; return it (None if detached) and the object that binds its returns."""
    if launches_script(args, wanted):
        lines = lines_before(args)
        return submit_script(shell, args, wanted, cell, parsed, lines), FromScript()
    if args.scale is None:
        with says_that_it_waits(shell, wanted):
            cluster, notes = current_cluster.cluster_for(wanted)
        for note in notes:
            notice(note, warns=True)
    else:
        cluster = current_cluster.fresh_cluster(wanted)
    cluster.names_between.forget(shell.user_ns)
    options = CellOptions(
        ranks=args.ranks,
        timeout=args.timeout,
        args=args.arguments,
        number=cell_number(shell),
        lines=lines_before(args),
        output=args.output,
        autoreload=autoreload_mode(shell),
        futures=parsed.code.co_flags & FUTURES,
        viewed=True,
        wanted=wanted_on_ranks(shell, parsed, forced=args.bring, automatic=not args.no_bring),
        returns=args.returns,
        kept=kept_names(shell, cell, parsed, args.returns, args.bring),
        background=args.background,
    )
    job = cluster.submit_cell(cell, options)
    if args.whole_cell and not hasattr(shell, "prompts"):  # a terminal's prompt shows the mode
        notice(f"On {name_ranks(job.ranks)}:")
    return job, cluster.names_between


def lines_before(args: argparse.Namespace) -> int:
    """Return how many lines of the notebook's cell come before the code for the ranks."""
    return 0 if args.whole_cell else 1


def check_syntax(shell: Any, cell: str, lines: int = 1) -> Parsed:  # IPython's shell
    """Parse a cell; raise `CellSyntaxError` if it has a syntax error.

    Line numbers are the notebook's: `lines` lines of its cell come before this text.
    """
    code = align(cell, lines).python
    try:
        code = transformed(shell, code)
        if "run_line_magic('dist'," in code:
            raise UsageMistake(
                "%dist steers the cluster from the notebook and is unknown on the ranks: give it a "
                "cell of its own"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks show the warnings
            return parsed(code, shell.compile.flags & FUTURES)
    except SyntaxError as err:
        err.filename = "%%distributed cell"
        number = err.lineno or 0
        err.text = err.text or "".join(["", *code.splitlines()][number : number + 1])
        text = shell.SyntaxTB.structured_traceback(type(err), err, [])
        raise CellSyntaxError(str(err), list(text)) from None


def autoreload_mode(shell: Any) -> str:  # IPython's shell
    """Return the mode of IPython's autoreload in the notebook, '' if it is not loaded."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    if magics is None:
        return ""
    reloader = magics._reloader
    if not reloader.enabled:
        return "off"
    if reloader.autoload_obj:
        return "complete"
    return "all" if reloader.check_all else "explicit"
