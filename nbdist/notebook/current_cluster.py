"""Starts, resizes or repairs the notebook's current cluster, as a cell asks for it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from nbdist.backends.choice import FITTING, check_fit
from nbdist.errors import UsageError
from nbdist.job.job import check_idle
from nbdist.launchers.rank_counts import check_size, default_size
from nbdist.notebook import kernel_cells
from nbdist.notebook.clusters import Cluster
from nbdist.notebook.session import Wish, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbdist.job.job import Job


def cluster() -> Cluster:
    """Return the notebook's cluster.

    Raises
    ------
    UsageError
        If there is none yet.
    """
    session.forget_stopped()
    if session.cluster is None:
        msg = "there is no cluster yet: run a %%distributed cell or %dist start"
        if kernel_cells.running() is not None:
            msg = (
                "there is no cluster: XLA runs in this kernel, and XLA cells make variables of "
                "the notebook; `%dist restart kernel` ends XLA and loses the variables"
            )
        raise UsageError(msg)
    return session.cluster


def jobs() -> list[Job]:
    """Return the notebook's jobs, the oldest first."""
    return session.jobs()


def cluster_for(wish: Wish) -> tuple[Cluster, list[str]]:
    """Start or change the cluster as the wish says; return it, and messages for the user."""
    if wish.np is not None:
        check_size(wish.np)
    if wish.launcher is None:  # nothing else stays
        wish = replace(wish, launcher="engines")
    now = wished(wish)
    notes = _tell_of_ranks(wish, now)
    if session.forget_stopped():
        notes.append(
            "The cluster was stopped from outside this notebook; a new one was started. "
            "All variables on the ranks are lost."
        )
    there = session.cluster
    if there is not None and _changed(there, wish):
        notes.append(_change(there, now))
    elif there is not None and there.lost:
        notes.append(
            "The cluster's warm process, the parent of its ranks, had died, and all ranks with it; "
            "a new cluster was started. "
            "All variables on the ranks are lost."
        )
        there.restart()
    if session.cluster is None:
        session.cluster = Cluster(
            now.np, backend=now.backend or "ddp", launcher="engines",
            gpus=now.gpus, env=now.env,
        )  # fmt: skip
    session.last = now
    return session.cluster, notes


def _change(old: Cluster, now: Wish) -> str:
    """Resize a cluster, or stop it if more must change; return a message for the user.

    Raises
    ------
    UsageError
        If the change would end a job; nothing was changed.

    """
    if not old.lost:
        check_idle(old.unfinished())
    resized = (now.backend, now.gpus, now.env) == (old.backend, old.gpus, session.last.env)
    if not resized:
        check_idle(session.running_scripts())
    lost = [] if old.lost else old.names()
    env = ", another --env" if now.env != session.last.env else ""
    if resized:
        old.resize(now.np or old.np)
    else:
        stop()
    return (
        f"The cluster was restarted with -np {now.np}, --backend {now.backend}{env}."
        f"{_tell_lost(lost)}"
    )


def fresh_cluster(wish: Wish) -> Cluster:
    """Return a cluster that meets the wish, with new ranks without variables."""
    there = session.cluster
    fits = there is not None and not there.lost and not _changed(there, wish)
    if there is not None and not there.lost:
        check_idle(there.unfinished())
    found, _ = cluster_for(wish)
    if fits:
        found.resize(found.np)
    return found


@contextmanager
def size_kept() -> Iterator[None]:
    """Restore the cluster's size at the end of the ``with`` block."""
    asked, had = session.last.np, None if session.cluster is None else session.cluster.np
    try:
        yield
    finally:
        if had is None:
            stop()
        elif session.cluster is not None and session.cluster.np != had:
            cluster_for(Wish(np=had))
        session.last = replace(session.last, np=asked)


def wished(wish: Wish) -> Wish:
    """Return a wish completed with what was asked for last; nothing is started."""
    last = session.last
    gpus = wish.gpus if wish.gpus is not None else last.gpus
    env = wish.env if wish.env is not None else last.env
    backend, launcher = _fitting(wish)
    return Wish(
        np=wish.np if wish.np is not None else last.np or default_size(gpus, env),
        backend=backend,
        launcher=launcher,
        gpus=gpus,
        env=env,
    )


def _fitting(wish: Wish) -> tuple[str, str]:
    """Return backend and launcher; one that is not named is the last one, if that fits."""
    backend, launcher = wish.backend, wish.launcher
    if backend and launcher:
        check_fit(backend, launcher)
        return backend, launcher
    last = session.last.backend or "ddp", session.last.launcher or "engines"
    if backend:
        fits = backend == last[0] or (last[1] in FITTING[backend] and backend in ("ddp", "none"))
        return backend, last[1] if fits else FITTING[backend][0]
    if launcher and launcher not in FITTING[last[0]]:
        old = session.cluster
        there = old.backend if old is not None and launcher == "engines" else "ddp"
        return {"horovodrun": "horovod", "kernel": "xla", "python": "none"}.get(
            launcher, there
        ), launcher
    return last[0], launcher or last[1]


def _changed(old: Cluster, wish: Wish) -> bool:
    return (
        wish.np not in (None, old.np)
        or wish.backend not in (None, old.backend)
        or wish.gpus not in (None, old.gpus)
        or wish.env not in (None, session.last.env)
    )


def _tell_of_ranks(wish: Wish, now: Wish) -> list[str]:
    """Return a message if cells no longer run on XLA because only a launcher was named."""
    if session.last.backend != "xla" or wish.backend is not None:
        return []
    return [
        f"Cells run on ranks with --backend {now.backend} from now on; --backend xla ends this."
    ]


def _tell_lost(names: list[str]) -> str:
    return f" Lost with the old ranks: {', '.join(names)}." if names else ""


def stop() -> list[str]:
    """Stop the notebook's cluster; return the names of the variables that are lost."""
    session.forget_stopped()
    old = session.release_cluster()
    if old is None:
        return []
    lost = [] if old.lost else old.names()
    old.stop()
    return lost
