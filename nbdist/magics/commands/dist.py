"""``%dist``: look at the cluster and steer it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from nbdist.errors import Interrupted, NbdistError, RankError
from nbdist.hub.link.forming import restarted
from nbdist.job.job import Job, show_ranks
from nbdist.job.states import WITH_CLUSTER
from nbdist.machine.amounts import in_time
from nbdist.machine.quoted_code import plain
from nbdist.magics.commands.arguments import (
    UsageMistake,
    cluster_arguments,
    parse,
    ranks_list,
    wish,
)
from nbdist.magics.commands.attach_command import attach
from nbdist.magics.commands.auto_command import auto
from nbdist.magics.commands.logs_command import find_job, logs
from nbdist.magics.commands.preload_command import preload
from nbdist.magics.commands.restart_kernel import restart_kernel
from nbdist.magics.commands.stacks_command import stacks
from nbdist.magics.commands.tensorboard_command import tensorboard
from nbdist.magics.commands.who_command import free, who
from nbdist.magics.showing.plain_table import detached_table, job_page, job_table, rank_table
from nbdist.notebook import current_cluster, detached_jobs, kernel_cells
from nbdist.notebook.clusters import END_SECONDS
from nbdist.notebook.session import session
from nbdist.rank.values.pickles import namespace

Command = Callable[..., None]
KERNEL = "kernel"
NOT_COPIED = (
    "Not copied is what cells have set in the process itself: the states of random generators "
    "(seed them again), `os.environ`, torch's default dtype, the working directory."
)


def ranks_or_kernel(text: str) -> list[int] | str:
    """Read ranks as a person writes them, or the word for the notebook's own process."""
    return KERNEL if text == KERNEL else ranks_list(text)


def _say(text: str) -> None:
    print(plain(text))  # this is display code


def _tell_of_wait(ranks: list[int] | None = None) -> None:
    """Say that a command has to wait for jobs in the background, if so."""
    jobs = current_cluster.cluster().unfinished(ranks)
    if jobs:
        listed = ", ".join(f"job {job.id}" for job in jobs)
        _say(f"The ranks are busy: this waits for {listed}. An interrupt stops only the waiting.")


@magic_arguments("dist status")
def status(args: Any) -> None:
    """Show every rank: host, process, device, state, memory; and what happens after a fault."""
    del args
    runtime = kernel_cells.running()
    if runtime is not None:
        _say(f"XLA runs in this kernel on {runtime.devices}, as rank 0 of 1.")
        if not session.has_cluster():
            return
    cluster = current_cluster.cluster()
    table = rank_table(cluster.ranks, cluster.vitals())
    _say("\n".join(filter(None, (repr(cluster), table, cluster.recovery()))))


@magic_arguments("dist start")
@cluster_arguments
def start(args: Any) -> None:
    """Start the cluster without running a cell."""
    began, wanted = time.monotonic(), wish(args)
    if current_cluster.wished(wanted).launcher == "kernel":
        last = "" if wanted.backend or wanted.launcher else ", as the last cell had it,"
        raise UsageMistake(
            f"--backend xla{last} runs cells in this kernel and needs no start; for ranks, on "
            "which the next cells run then, say --backend ddp, horovod or none"
        )
    cluster, notes = current_cluster.cluster_for(wanted)
    for note in notes:
        _say(note)
    _say(f"{cluster!r} ready after {in_time(time.monotonic() - began)}")


@magic_arguments("dist stop")
def stop(args: Any) -> None:
    """Stop the cluster; variables on its ranks are lost."""
    del args
    running = session.running_scripts()
    if not running:
        current_cluster.cluster()
    for job in running:
        job.on_cancel(WITH_CLUSTER)
    lost = current_cluster.stop()
    for job in running:
        job.until_end(END_SECONDS)
    _say("The cluster was stopped." + (f" Lost: {', '.join(lost)}." if lost else ""))


@magic_arguments("dist restart")
@argument("--like", type=int, metavar="RANK", help="copy this rank's variables to the new ones")
@argument(
    "ranks",
    nargs="?",
    type=ranks_or_kernel,
    metavar="RANKS",
    help="which ranks, such as 1 or 0,2-3, all by default; or `kernel`: the notebook's own process",
)
def restart(args: Any) -> None:
    """Restart ranks in new processes; the others keep their variables."""
    if args.ranks == KERNEL:
        _say(restart_kernel())
        return
    _tell_of_wait()
    cluster = current_cluster.cluster()
    lacking = cluster.restart(args.ranks, like=args.like)
    for rank, names in sorted(lacking.items()):
        _say(restarted(rank, names))
        for name, why in names.items():
            if why:
                _say(f"  {name}: {why}")
    if args.like is not None and lacking:
        _say(NOT_COPIED)
    if not lacking:
        _say("The cluster was restarted.")
    for note in cluster.notes():
        _say(note)


@magic_arguments("dist interrupt")
def interrupt(args: Any) -> None:
    """Interrupt the jobs that run or wait, also in the background."""
    del args
    running = [job for job in session.jobs() if not job.done]
    if not running:
        current_cluster.cluster()
    for job in running:
        job.cancel()


@magic_arguments("dist cancel")
@argument("jobs", nargs="+", metavar="JOB", help="a job's number (see %%dist jobs)")
def cancel(args: Any) -> None:
    """Interrupt these jobs, or take them out of the queue."""
    for job in [find_job(number) for number in args.jobs]:
        if job.done:
            _say(f"Job {job.id} has ended before: {job.state}.")
        else:
            job.cancel()
            _say(f"Job {job.id} is being stopped; {_says_how(job)} how it ends.")


def _says_how(job: Job) -> str:
    if job in session.jobs():
        return "its cell says"
    return f"`%dist attach {job.id}` shows"


@magic_arguments("dist jobs")
@argument(
    "--clean", action="store_true",
    help="remove detached jobs that have ended, or the one that is named, logs and all",
)  # fmt: skip
@argument("job", nargs="?", metavar="JOB", help="tell all about the job with this id")
def jobs(args: Any) -> None:
    """List the notebook's jobs, and all that were detached from whichever notebook."""
    if args.clean:
        removed = detached_jobs.clean(args.job)
        none = "none has ended" if args.job is None else f"{args.job} has not ended"
        _say(f"Removed: {', '.join(kept.id for kept in removed) or f'nothing, {none}'}.")
    elif args.job is not None:
        _say(job_page(find_job(args.job)))
    else:
        found, unreadable = detached_jobs.listed()
        if session.jobs() or not (found or unreadable):
            _say(job_table(session.jobs()))
        if found or unreadable:
            _say(f"\nDetached:\n{detached_table(found, unreadable)}")


@magic_arguments("dist sync")
@argument(
    "--from", dest="source", type=int, default=0, metavar="RANK", help="whose values (default: 0)"
)
@argument(
    "names", nargs="+", metavar="NAME",
    help="models, optimizers, schedulers, gradient scalers: variables, or what they lead to, such "
    "as trainer.model",
)  # fmt: skip
def sync(args: Any) -> None:
    """Make models equal on all ranks."""
    _tell_of_wait()
    for name in args.names:
        cluster = current_cluster.cluster()
        ranks = cluster.sync(name, args.source)
        where = "all ranks" if len(ranks) == cluster.np else f"ranks {show_ranks(ranks)}"
        _say(f"`{name}` is now on {where} as it was on rank {args.source}.")


@magic_arguments("dist push")
@argument("--ranks", type=ranks_list, metavar="0,2-3", help="only to these ranks")
@argument("names", nargs="+", metavar="NAME", help="variables of the notebook")
def push(args: Any) -> None:
    """Bind variables of the notebook on the ranks, whatever those have under their names."""
    space = namespace()
    missing = [name for name in args.names if name not in space]
    if missing:
        msg = f"the notebook has no variable `{missing[0]}`"
        raise UsageMistake(msg)
    cluster = current_cluster.cluster()
    _tell_of_wait(args.ranks)
    for line in cluster.send({name: space[name] for name in args.names}, args.ranks):
        _say(line)


@magic_arguments("dist pull")
@argument(
    "--ranks", type=ranks_list, default=[0], metavar="0,2-3",
    help="whose; of several, each name becomes a dict by rank (default: 0)",
)  # fmt: skip
@argument("names", nargs="+", metavar="NAME", help="variables of the ranks")
def pull(args: Any) -> None:
    """Bind variables of the ranks in the notebook."""
    cluster = current_cluster.cluster()
    _tell_of_wait(args.ranks)
    found = {rank: cluster.fetch(args.names, rank) for rank in args.ranks}
    if len(found) == 1:
        cluster.names_between.bind(found[args.ranks[0]], namespace())
    else:
        for name in args.names:
            namespace()[name] = {rank: values[name] for rank, values in found.items()}
    _say(f"Bound in the notebook: {', '.join(args.names)}.")


COMMANDS: dict[str, Command] = {
    command.__name__: command
    for command in (
        status,
        start,
        stop,
        restart,
        interrupt,
        cancel,
        logs,
        stacks,
        jobs,
        attach,
        sync,
        push,
        pull,
        who,
        free,
        preload,
        auto,
        tensorboard,
    )
}


@magics_class
class DistMagics(Magics):
    """The line magic."""

    @line_magic
    def dist(self, line: str) -> None:
        """Look at the cluster and steer it: `%dist COMMAND`, each with `-h`.

        status     every rank: host, process, device, state, memory
        start      start the cluster without running a cell
        stop       stop it
        restart    restart ranks in new processes: `%dist restart 1 --like 0`;
                   or this notebook's kernel: `%dist restart kernel`
        interrupt  interrupt all jobs, also those in the background
        cancel     interrupt one: `%dist cancel 3`
        logs       all a rank has printed: `%dist logs 1`
        stacks     where every rank is, or those of one job: `%dist stacks 3`
        jobs       the notebook's jobs and detached ones, or all about one: `%dist jobs 3`
        attach     show a detached job, all of it: `%dist attach`
        sync       make a model equal on all ranks: `%dist sync model --from 0`
        push       bind variables of the notebook on the ranks: `%dist push x y`
        pull       bind variables of the ranks here: `%dist pull history --ranks 0`
        who        the ranks' variables, and where ranks differ: `%dist who opt*`
        free       release memory that no variable needs
        preload    let new ranks find modules imported: `%dist preload transformers`
        auto       run plain cells on the ranks: `%dist auto on`
        tensorboard  a job's metrics in TensorBoard: `%dist tensorboard 3`, `--stop`
        """
        name, _, rest = line.strip().partition(" ")
        if name in ("", "-h", "--help"):
            _say(DistMagics.dist.__doc__ or "")
            return
        command = COMMANDS.get(name)
        if command is None:
            raise UsageMistake(_unknown(name))
        try:
            args = parse(command, rest, passes_on=command is auto)
            if args is not None:
                command(args)
        except (UsageMistake, RankError, Interrupted):
            raise
        except NbdistError as err:
            raise UsageMistake(str(err)) from err


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"%dist knows no {name!r}{hint} It knows {', '.join(COMMANDS)}."
