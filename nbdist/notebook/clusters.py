"""`Cluster`: ranks that stay, as a notebook or a script uses them. Any thread."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from nbdist.backends.choice import BACKENDS
from nbdist.errors import NbdistError, UsageError
from nbdist.hub import living
from nbdist.hub.asking import replacing, stacks
from nbdist.hub.link import forming
from nbdist.hub.link.hub_loop import hub_loop, uninterrupted
from nbdist.hub.running.cell_run import Run
from nbdist.job.job import WITH_CLUSTER, Job, check_idle, name_ranks, next_job_id, show_ranks
from nbdist.launchers.rank_counts import check_size, default_size
from nbdist.machine.amounts import counted
from nbdist.machine.gpus import environ_for
from nbdist.notebook import clients
from nbdist.notebook.inspecting import Inspecting
from nbdist.notebook.names_both_ways import Names
from nbdist.notebook.sharing import Sharing
from nbdist.published import kernel
from nbdist.rank.looking.vitals import STACKS_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import ipyparallel

    from nbdist.cell.names.bringing import Wanted
    from nbdist.hub.link.ranks import Rank

_ids = itertools.count(1)
ASK_SECONDS = 3.0
"""A rank that has not answered by then is left out."""
END_SECONDS = 5.0
"""Jobs of a cluster that is stopped end by then."""


class Cluster(Sharing, Inspecting):
    """A persistent cluster of ranks on this machine.

    Parameters
    ----------
    np
        Number of ranks; by default one for each GPU, or 2.
    backend
        How ranks talk to each other: ``ddp`` (torch.distributed, the group is formed) or ``none``.
    launcher
        ``engines``: ipyparallel engines that live until `stop`.
    gpus
        The GPUs to use, counted among those that are visible (``CUDA_VISIBLE_DEVICES``); all of
        these by default.
    env
        Environment variables for the ranks.

    Raises
    ------
    UsageError
        If an argument cannot be met; nothing was started.
    LaunchError
        If the ranks did not come up.
    """

    def __init__(
        self,
        np: int | None = None,
        *,
        backend: str = "ddp",
        launcher: str = "engines",
        gpus: Sequence[int] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        if backend not in BACKENDS:
            msg = f"unknown backend {backend!r}; there are {', '.join(BACKENDS)}"
            raise UsageError(msg)
        if launcher != "engines":
            msg = f"unknown launcher {launcher!r}; there is 'engines'"
            raise UsageError(msg)
        environ = environ_for(gpus, env)
        size = check_size(default_size(gpus, env) if np is None else np)
        self.backend, self.launcher, self.env, self.gpus = backend, launcher, environ, gpus
        self.np = size
        self.id, self.created = str(next(_ids)), time.time()
        self._numbers = itertools.count(1)
        self._jobs: list[Job] = []
        self._client: ipyparallel.Client | None = None
        self._heard: set[tuple[str, int]] = set()
        """Hosts and pids of the ranks whose output is known to reach the client."""
        self._changing = threading.RLock()
        """Held by whoever starts or ends all ranks: cells, and commands from outside."""
        self.hub = living.take()
        try:
            hub_loop().wait(forming.start(self.hub, size, backend, environ))
        except BaseException:  # an interrupt, too, must leave nothing behind
            living.release(self.hub)
            raise
        self.names_between = Names(self.hub, gpus)
        _clusters.append(self)
        kernel.show_cluster(self)

    # -- cells ---------------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        args: Sequence[str] = (),
    ) -> Job:
        """Run a cell and wait for its end.

        Parameters
        ----------
        code
            What stands in the cell; IPython syntax is understood.
        ranks
            The ranks to run on; all by default.
        timeout
            Seconds after which the cell is interrupted; None for no limit.
        args
            Arguments of the program in the cell, which finds them in ``sys.argv`` behind its name.

        Returns
        -------
        Job
            Ended, well or not: see `Job.ok` and `Job.errors`.
        """
        job = self.submit(code, ranks=ranks, timeout=timeout, args=args)
        try:
            job.until_end()
        except KeyboardInterrupt:
            job.cancel()
            raise
        return job

    def submit(
        self,
        code: str,
        *,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        args: Sequence[str] = (),
        number: int | None = None,
        lines: int = 0,
        output: str = "rank0",
        autoreload: str = "",
        viewed: bool = False,
        wanted: Wanted | None = None,
        returns: Sequence[str] = (),
        background: bool = False,
    ) -> Job:
        """Start a cell without waiting; it queues behind those its ranks are busy with.

        The job it returns is the handle: `Job.done`, `Job.wait` and `Job.cancel`.

        Parameters
        ----------
        code, ranks, timeout, args
            As in `run`.
        number
            The cell's execution count, which its tracebacks name; counted here by default.
        lines
            Lines of the notebook's cell before `code`, for the line numbers of tracebacks.
        output
            What a viewer sees: ``rank0`` (the first of the ranks), ``all`` (every line labelled)
            or ``collapse`` (lines that are equal on all ranks once).
        autoreload
            Mode of IPython's autoreload to follow, ``''`` for none.
        viewed
            Whether the caller will take all of `Job.events`.
        wanted
            Names of the notebook to bring where the ranks lack them.
        returns
            Names to pack for the notebook after the cell; see `Job.take_returned`.
        background
            Whether the notebook goes on meanwhile, so that advice to interrupt would not help.

        Raises
        ------
        UsageError
            If something cannot be brought; nothing was started.
        """
        self._check_alive()
        chosen = self._chosen(ranks)
        bringing = None if wanted is None else self.names_between.pack(wanted, chosen)
        job = Job(
            id=next_job_id(), code=code, ranks=chosen, number=number or next(self._numbers),
            lines=lines, viewed=viewed, background=background, folder=self.hub.logs.folder,
        )  # fmt: skip
        run = Run(
            self.hub, job, output=output, arguments=args, autoreload=autoreload, timeout=timeout,
            bringing=bringing, returns=returns,
        )  # fmt: skip
        loop = self.hub.loop

        def press(why: str) -> None:
            loop.call_soon_threadsafe(run.press, why)

        job.on_cancel = press
        job.on_stacks = lambda: self.stacks(chosen)
        try:
            with uninterrupted():
                self._jobs.append(job)
                kernel.show_job(job, self.launcher, self.id)
                hub_loop().soon(run.run())
        except KeyboardInterrupt:  # who called does not get the job, and could not stop it
            job.cancel()
            raise
        return job

    def jobs(self) -> list[Job]:
        """Return the jobs of this cluster, the oldest first."""
        return list(self._jobs)

    def unfinished(self, ranks: Iterable[int] | None = None) -> list[Job]:
        """Return the jobs that run or wait on any of these ranks (all by default)."""
        wanted = set(range(self.np) if ranks is None else ranks)
        return [job for job in self._jobs if not job.done and wanted & set(job.ranks)]

    # -- ranks ---------------------------------------------------------------------------------

    @property
    def ranks(self) -> list[Rank]:
        """What is known of each rank."""
        return [self.hub.ranks[rank] for rank in sorted(self.hub.ranks)]

    @property
    def client(self) -> ipyparallel.Client:
        """An ipyparallel client of the same engines.

        Raises
        ------
        LaunchError
            If ipyparallel's controller has died, or has lost ranks; our own cells do not need it.
        """
        self._check_alive()
        self.hub.host.check_controller()
        if self._client is None:
            self._client = clients.connect(self.hub.host.connection_file("client"), self.np)
            self._heard = set()
        elif len(self._client.ids) < self.np:
            clients.wait_for_replaced(self._client, self.np)
        processes = {(rank.host, rank.pid) for rank in self.ranks}
        if processes != self._heard and clients.hears(self._client):
            self._heard = processes
        return self._client

    def interrupt(self) -> None:
        """Interrupt every job that runs or waits."""
        for job in self.unfinished():
            job.cancel()

    def restart(
        self, ranks: Iterable[int] | None = None, *, like: int | None = None
    ) -> dict[int, dict[str, str]]:
        """Put new processes in the place of these ranks (all by default).

        Parameters
        ----------
        ranks
            The ranks to replace; the others keep their variables.
        like
            A rank whose variables are copied to the new ones; kept DDP models train on with them.

        Returns
        -------
        dict
            For each new rank the names it lacks, compared with the others, and why where that is
            known.
        """
        chosen = list(self._chosen(ranks))
        if like is not None and (like in chosen or not 0 <= like < self.np):
            msg = f"--like {like} must be one of the ranks that stay, not of {show_ranks(chosen)}"
            raise UsageError(msg)
        with self._changing:
            self._check_alive()
            if self.lost or (self.hub.host.controller_died and len(chosen) == self.np):
                self._renew()
                return {}
        try:
            return hub_loop().wait(replacing.restart(self.hub, chosen, like))
        except (NbdistError, OSError):
            self._check_alive()  # it was stopped meanwhile: that says more
            raise

    def sync(self, path: str, source: int = 0) -> list[int]:
        """Make a model (or an optimizer, a scheduler, a gradient scaler) equal on its ranks.

        Parameters
        ----------
        path
            The variable that holds it, or the way to it: ``trainer.model``, ``nets[0]``.
        source
            The rank whose values all get.

        Returns
        -------
        list of int
            The ranks that have it.
        """
        self._check_alive()
        return hub_loop().wait(replacing.sync(self.hub, path, source))

    def notes(self) -> list[str]:
        """Return what is to be told of ranks and groups that were made anew; each line once.

        The next cell tells what nobody has asked for.
        """
        return forming.drain(self.hub)

    def recovery(self) -> str:
        """Return how process groups and models come back after a fault, in words."""
        return forming.in_words(self.hub)

    def vitals(self) -> dict[int, dict[str, Any]]:
        """Ask every rank what it is doing; one that does not answer is left out."""
        answers = hub_loop().wait(self.hub.call_all(self._living(), "vitals", timeout=ASK_SECONDS))
        return {rank: answer for rank, answer in answers.items() if isinstance(answer, dict)}

    def stacks(self, ranks: Iterable[int] | None = None) -> dict[int, str]:
        """Return the Python stacks of living ranks, also of one whose main thread is stuck."""
        hub, chosen = self.hub, self._chosen(ranks)

        def dump(rank: int) -> None:
            hub.host.signal(hub.ranks[rank].pid, STACKS_SIGNAL)

        living = [rank for rank in self._living() if rank in chosen]
        return hub_loop().wait(stacks.of(hub.line, hub.host.folder, living, dump))

    def _chosen(self, ranks: Iterable[int] | None) -> tuple[int, ...]:
        """Return the ranks meant, all by default."""
        chosen = tuple(sorted(set(range(self.np) if ranks is None else ranks)))
        wrong = [rank for rank in chosen if not 0 <= rank < self.np]
        if wrong or not chosen:
            are = "is" if len(wrong) == 1 else "are"
            which = f"there {are} no {name_ranks(wrong)}" if wrong else "no rank is named"
            msg = f"{which}; this cluster has {name_ranks(list(range(self.np)))}"
            raise UsageError(msg)
        return chosen

    def _living(self) -> list[int]:
        return [rank.rank for rank in self.ranks if rank.alive]

    # -- its end -------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether it has been stopped, by whoever may."""
        return self not in _clusters

    @property
    def lost(self) -> bool:
        """Whether its warm process, and all ranks with it, is gone."""
        return self.hub.host.warm.gone.is_set()

    def names(self) -> list[str]:
        """Return the names that cells have bound on the ranks."""
        answers = hub_loop().wait(self.hub.call_all(self._living(), "names", timeout=ASK_SECONDS))
        return sorted(
            {name for names in answers.values() if isinstance(names, list) for name in names}
        )

    def resize(self, np: int) -> None:
        """End all ranks and start `np` new ones.

        Raises
        ------
        UsageError
            If that would end a job that runs or waits.
        """
        size = check_size(np)
        with self._changing:
            self._check_alive()
            if not self.lost:
                check_idle(self.unfinished())
            if self.hub.host.controller_died:
                self.np = size
                self._renew()
                return
            self._drop_client()
            hub_loop().wait(self.hub.empty())
            self.np = size
            hub_loop().wait(forming.start(self.hub, size, self.backend, self.env))

    def _renew(self) -> None:
        """Start all over after the warm process or the controller was lost."""
        self._drop_client()
        living.release(self.hub)
        self.hub = living.take()
        self.names_between = Names(self.hub, self.gpus)
        hub_loop().wait(forming.start(self.hub, self.np, self.backend, self.env))

    def stop(self) -> None:
        """End all ranks and everything that was started for them."""
        with self._changing:
            if self.stopped:
                return
            _clusters.remove(self)
            kernel.hide_cluster(self)
            unfinished = self.unfinished()
            for job in unfinished:
                job.on_cancel(WITH_CLUSTER)
            self._drop_client()
            living.release(self.hub)
            for job in unfinished:
                job.until_end(END_SECONDS)

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _check_alive(self) -> None:
        if self.stopped:
            msg = "this cluster was stopped; start another with nbdist.Cluster(...) or %dist start"
            raise UsageError(msg)

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "lost" if self.lost else "running"
        return f"<nbdist.Cluster {counted(self.np, 'rank')}, {self.backend}, {state}>"


_clusters: list[Cluster] = []


def stop_all() -> None:
    """End every cluster of this process, and what was prepared for one."""
    for cluster in reversed(_clusters.copy()):
        cluster.stop()
    living.drop_prepared()
