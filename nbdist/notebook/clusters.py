"""`Cluster`: ranks that stay between cells. Any thread."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from nbdist.backends.choice import BACKENDS
from nbdist.errors import NbdistError, UsageError
from nbdist.hub.asking import replacing, syncing, variables
from nbdist.hub.link import forming
from nbdist.hub.link.hub_loop import hub_loop, uninterrupted
from nbdist.hub.running.cell_run import Run
from nbdist.job.job import Job, check_idle, next_job_id
from nbdist.job.named_ranks import name_ranks, show_ranks
from nbdist.job.states import WITH_CLUSTER
from nbdist.launchers.rank_counts import check_size, default_size
from nbdist.machine.amounts import counted
from nbdist.machine.gpus import environ_for
from nbdist.notebook import inspecting
from nbdist.notebook.cell_options import CellOptions
from nbdist.notebook.clients import ClientOfRanks
from nbdist.notebook.names_both_ways import Names
from nbdist.notebook.session import session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import ipyparallel

    from nbdist.hub.link.ranks import Rank
    from nbdist.job.states import Stop
    from nbdist.wire.inspection import Completions, Condition, Freed

_ids = itertools.count(1)
END_SECONDS = 5.0
"""How long to wait for the jobs of a cluster that is being stopped."""


class Cluster:
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
        self._client = ClientOfRanks()
        self._changing = threading.RLock()
        """Held while all ranks are started or ended, by a cell or by a command from the sidebar."""
        self.hub = session.hubs.take()
        try:
            hub_loop().wait(forming.start(self.hub, size, backend, environ))
        except BaseException:  # an interrupt, too, must leave nothing behind
            session.hubs.release(self.hub)
            raise
        self.names_between = Names(self.hub, gpus)
        session.clusters.append(self)
        session.published.show_cluster(self)

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
            The cell's source; IPython syntax is allowed.
        ranks
            The ranks to run on; all by default.
        timeout
            Seconds after which the cell is interrupted; None for no limit.
        args
            Arguments of the cell's program, in ``sys.argv`` after the program's name.

        Returns
        -------
        Job
            The finished job, successful or not: see `Job.ok` and `Job.errors`.

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
    ) -> Job:
        """Start a cell without waiting; it queues behind those its ranks are busy with.

        Parameters
        ----------
        code, ranks, timeout, args
            As in `run`.

        Returns
        -------
        Job
            The handle on the cell: `Job.done`, `Job.wait` and `Job.cancel`.
        """
        return self.submit_cell(code, CellOptions(ranks=ranks, timeout=timeout, args=args))

    def submit_cell(self, code: str, options: CellOptions) -> Job:
        """Do what `submit` does, with all options that the magics have.

        Raises
        ------
        UsageError
            If a name cannot be copied to the ranks; nothing was started.

        """
        self._check_alive()
        chosen, wanted = self._chosen(options.ranks), options.wanted
        bringing = None if wanted is None else self.names_between.pack(wanted, chosen)
        job = Job(
            id=next_job_id(), code=code, ranks=chosen, number=options.number or next(self._numbers),
            lines=options.lines, viewed=options.viewed, background=options.background,
            folder=self.hub.logs.folder,
        )  # fmt: skip
        run = Run(
            self.hub, job, output=options.output, arguments=options.args,
            autoreload=options.autoreload, futures=options.futures, timeout=options.timeout,
            bringing=bringing, returns=options.returns, kept=options.kept,
        )  # fmt: skip
        self._begin(job, run)
        return job

    def _begin(self, job: Job, run: Run) -> None:
        """Pass a job to the hub's thread."""
        loop = self.hub.loop

        def press(why: Stop) -> None:
            loop.call_soon_threadsafe(run.press, why)

        job.on_cancel = press
        job.on_stacks = lambda: self.stacks(job.ranks)
        try:
            with uninterrupted():
                self._jobs.append(job)
                session.published.show_job(job, self.launcher, self.id)
                hub_loop().soon(run.run())
        except KeyboardInterrupt:  # who called does not get the job, and could not stop it
            job.cancel()
            raise

    def jobs(self) -> list[Job]:
        """Return the jobs of this cluster, the oldest first."""
        return list(self._jobs)

    def unfinished(self, ranks: Iterable[int] | None = None) -> list[Job]:
        """Return the jobs that run or wait on any of these ranks (all by default)."""
        wanted = set(range(self.np) if ranks is None else ranks)
        return [job for job in self._jobs if not job.done and wanted & set(job.ranks)]

    # -- variables ---------------------------------------------------------------------------

    def push(self, **names: Any) -> None:
        """Copy these values to every rank, replacing variables of the same names.

        Raises
        ------
        UsageError
            If a value cannot be pickled; nothing was bound.

        """
        self.send(names)

    def pull(self, name: str, ranks: int | Iterable[int] = 0) -> Any:  # whatever it is bound to
        """Return a copy of a variable: its value on one rank, or a dict by rank for several ranks.

        Raises
        ------
        UsageError
            If a rank has no such variable, or its value cannot be pickled.

        """
        if isinstance(ranks, int):
            return self.fetch([name], ranks)[name]
        return {rank: self.fetch([name], rank)[name] for rank in self._chosen(ranks)}

    def send(self, values: dict[str, Any], ranks: Iterable[int] | None = None) -> list[str]:
        """Do what `push` does, on some ranks; return messages for the user."""
        self._check_alive()
        return self.names_between.push(values, self._chosen(ranks))

    def fetch(self, names: Sequence[str], rank: int) -> dict[str, Any]:
        """Return copies of one rank's variables; an object with several names is copied once."""
        self._check_alive()
        return self.names_between.pull(names, self._chosen([rank])[0])

    def who(
        self, *patterns: str, ranks: Iterable[int] | None = None, most: int | None = None
    ) -> variables.Inventory:
        """List the ranks' variables and where ranks differ; a busy rank is not disturbed.

        Parameters
        ----------
        patterns
            Names, or patterns such as ``opt*``; without any, all variables that are not private,
            a module, a function or a class.
        ranks
            The ranks to ask; all by default.
        most
            How many variables to describe; all by default.

        Returns
        -------
        Inventory
            Its `variables`, and the ranks whose values could not be compared.
        """
        self._check_alive()
        return hub_loop().wait(variables.who(self.hub, self._chosen(ranks), patterns, most))

    def free(self, ranks: Iterable[int] | None = None) -> tuple[dict[int, Freed], dict[int, str]]:
        """Have idle ranks release all memory that no variable needs.

        Returns
        -------
        tuple of dict
            By rank: the memory before and after (neither for a busy rank); and, for a rank that
            did not answer, the reason.

        """
        self._check_alive()
        return hub_loop().wait(variables.free(self.hub, self._chosen(ranks)))

    def complete(self, code: str, cursor: int, ranks: Iterable[int] | None = None) -> Completions:
        """Return the ranks' completions at a position in a cell, within a third of a second."""
        return inspecting.complete(self.hub, self._chosen(ranks), code, cursor)

    def names(self) -> list[str]:
        """Return the names that cells have bound on the ranks."""
        return inspecting.names(self.hub)

    def known_there(self, names: list[str]) -> set[str]:
        """Return which of these names some rank has, also one that is busy."""
        return inspecting.known_there(self.hub, names)

    # -- ranks ---------------------------------------------------------------------------------

    @property
    def ranks(self) -> list[Rank]:
        """The state of each rank."""
        return [self.hub.ranks[rank] for rank in sorted(self.hub.ranks)]

    @property
    def client(self) -> ipyparallel.Client:
        """An ipyparallel client of the same engines.

        Raises
        ------
        LaunchError
            If ipyparallel's controller has died, or has lost ranks; nbdist's own cells work without
            the controller.

        """
        self._check_alive()
        return self._client.get(self.hub.host, self.ranks)

    def interrupt(self) -> None:
        """Interrupt every job that runs or waits."""
        for job in self.unfinished():
            job.cancel()

    def restart(
        self, ranks: Iterable[int] | None = None, *, like: int | None = None
    ) -> dict[int, dict[str, str]]:
        """Replace the processes of these ranks (all by default).

        Parameters
        ----------
        ranks
            The ranks to replace; the others keep their variables.
        like
            A rank whose variables are copied to the new processes; DDP models can then be trained
            further.

        Returns
        -------
        dict
            For each new rank, the names that it lacks compared with the other ranks and with the
            process before it, and the reason where it is known. Empty if all ranks are new, and
            nobody knows what they had.

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
        """Copy a model (or an optimizer, a scheduler, a gradient scaler) from a rank to the others.

        If it is another thing on one of them (other parameters, shapes, dtypes), nothing changes.

        Parameters
        ----------
        path
            The object's variable, or an expression such as ``trainer.model`` or ``nets[0]``.
        source
            The rank whose values are copied to the others.

        Returns
        -------
        list of int
            The ranks that have the object.

        """
        self._check_alive()
        return hub_loop().wait(syncing.sync(self.hub, path, source))

    def notes(self) -> list[str]:
        """Return each message about replaced ranks and re-created process groups once.

        Messages that are not asked for here are shown with the next cell.
        """
        return forming.drain(self.hub)

    def recovery(self) -> str:
        """Return, in words, how process groups and models are recovered after a fault."""
        return forming.in_words(self.hub)

    def vitals(self) -> dict[int, Condition]:
        """Ask every rank what it is doing; a rank that does not answer is left out."""
        return inspecting.vitals(self.hub)

    def stacks(self, ranks: Iterable[int] | None = None) -> dict[int, str]:
        """Return the Python stacks of living ranks, also of one whose main thread is stuck."""
        return inspecting.stacks(self.hub, self._chosen(ranks))

    def _chosen(self, ranks: Iterable[int] | None) -> tuple[int, ...]:
        """Return these ranks as a checked tuple; all ranks by default."""
        chosen = tuple(sorted(set(range(self.np) if ranks is None else ranks)))
        wrong = [rank for rank in chosen if not 0 <= rank < self.np]
        if wrong or not chosen:
            are = "is" if len(wrong) == 1 else "are"
            which = f"there {are} no {name_ranks(wrong)}" if wrong else "no rank is named"
            msg = f"{which}; this cluster has {name_ranks(list(range(self.np)))}"
            raise UsageError(msg)
        return chosen

    # -- its end -------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether the cluster has been stopped, from here or from the sidebar."""
        return self not in session.clusters

    @property
    def lost(self) -> bool:
        """Whether the warm process has died, and all ranks with it."""
        return self.hub.host.warm.gone.is_set()

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
            self._client.close()
            hub_loop().wait(self.hub.empty())
            self.np = size
            hub_loop().wait(forming.start(self.hub, size, self.backend, self.env))

    def _renew(self) -> None:
        """Start all ranks again after the warm process or the controller was lost."""
        self._client.close()
        session.hubs.release(self.hub)
        self.hub = session.hubs.take()
        self.names_between = Names(self.hub, self.gpus)
        hub_loop().wait(forming.start(self.hub, self.np, self.backend, self.env))

    def stop(self) -> None:
        """Stop all ranks and all other processes of the cluster."""
        with self._changing:
            if self.stopped:
                return
            session.clusters.remove(self)
            session.published.hide_cluster(self)
            unfinished = self.unfinished()
            for job in unfinished:
                job.on_cancel(WITH_CLUSTER)
            self._client.close()
            session.hubs.release(self.hub)
            for job in unfinished:
                job.until_end(END_SECONDS)

    def _check_alive(self) -> None:
        if self.stopped:
            msg = "this cluster was stopped; start another with nbdist.Cluster(...) or %dist start"
            raise UsageError(msg)

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "lost" if self.lost else "running"
        return f"<nbdist.Cluster {counted(self.np, 'rank')}, {self.backend}, {state}>"
