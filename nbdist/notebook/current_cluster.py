"""The notebook's current cluster, and what its cells asked for last."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbdist.backends.choice import FITTING, check_fit
from nbdist.errors import UsageError
from nbdist.job.job import check_idle
from nbdist.launchers.rank_counts import check_size, default_size
from nbdist.notebook import kernel_cells, script_cells
from nbdist.notebook.clusters import Cluster, stop_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbdist.job.job import Job


@dataclass
class Wish:
    """What a cell asks of the cluster; None where it says nothing."""

    np: int | None = None
    backend: str | None = None
    launcher: str | None = None
    gpus: list[int] | None = None
    env: dict[str, str] | None = None


_cluster: Cluster | None = None
_last = Wish()
_past: list[Job] = []
"""Jobs of the clusters before this one."""


def cluster() -> Cluster:
    """Return the notebook's cluster.

    Raises
    ------
    UsageError
        If there is none yet.
    """
    if _was_stopped():
        _forget_stopped()
    if _cluster is None:
        msg = "there is no cluster yet: run a %%distributed cell or %dist start"
        if kernel_cells.running() is not None:
            msg = (
                "there is no cluster: XLA runs in this kernel, and what its cells make are the "
                "notebook's own variables; `%dist restart kernel` ends both"
            )
        raise UsageError(msg)
    return _cluster


def has_cluster() -> bool:
    """Return whether there is one that has not been stopped."""
    return _cluster is not None and not _cluster.stopped


def jobs() -> list[Job]:
    """Return the notebook's jobs, the oldest first; each is also the handle on it."""
    ours = (
        _past
        + script_cells.jobs()
        + kernel_cells.jobs()
        + ([] if _cluster is None else _cluster.jobs())
    )
    return sorted(ours, key=lambda job: job.created)


def cluster_for(wish: Wish) -> tuple[Cluster, list[str]]:
    """Return a cluster that meets the wish, made or changed if need be, and what to tell of it."""
    global _cluster, _last  # a notebook has one current cluster
    if wish.np is not None:
        check_size(wish.np)
    if wish.launcher is None:  # nothing else stays
        wish = replace(wish, launcher="engines")
    now = _merge(wish)
    notes = _tell_of_ranks(wish, now)
    if _was_stopped():
        _forget_stopped()
        notes.append(
            "The cluster was stopped from outside this notebook; a new one was started. "
            "All variables on the ranks are lost."
        )
    if _cluster is not None and _changed(_cluster, wish):
        if not _cluster.lost:
            check_idle(_cluster.unfinished())
        kept = _cluster.backend, _cluster.gpus, _last.env
        resized = (now.backend, now.gpus, now.env) == kept
        if not resized:
            check_idle(script_cells.unfinished())
        lost = [] if _cluster.lost else _cluster.names()
        what = f"-np {now.np}, --backend {now.backend}{', another --env' * (now.env != _last.env)}"
        notes.append(f"The cluster was restarted with {what}." + _tell_lost(lost))
        if resized:
            _cluster.resize(now.np or _cluster.np)
        else:
            stop()
    elif _cluster is not None and _cluster.lost:
        notes.append(
            "The cluster's warm process had died and all ranks with it; a new cluster was started. "
            "All variables on the ranks are lost."
        )
        _cluster.restart()
    if _cluster is None:
        _cluster = Cluster(
            now.np, backend=now.backend or "ddp", launcher="engines",
            gpus=now.gpus, env=now.env,
        )  # fmt: skip
    _last = now
    return _cluster, notes


def fresh_cluster(wish: Wish) -> Cluster:
    """Return a cluster that meets the wish, with new ranks, which know nothing of earlier cells."""
    fits = _cluster is not None and not _cluster.lost and not _changed(_cluster, wish)
    if _cluster is not None and not _cluster.lost:
        check_idle(_cluster.unfinished())
    found, _ = cluster_for(wish)
    if fits:
        found.resize(found.np)
    return found


@contextmanager
def size_kept() -> Iterator[None]:
    """Have the cluster as large afterwards as it was, whatever was asked for in between."""
    global _last  # see cluster_for
    asked, had = _last.np, None if _cluster is None else _cluster.np
    try:
        yield
    finally:
        if had is None:
            stop()
        elif _cluster is not None and _cluster.np != had:
            cluster_for(Wish(np=had))
        _last = replace(_last, np=asked)


def wished(wish: Wish) -> Wish:
    """Return what a wish comes to, with what was asked for last; starts nothing."""
    return _merge(wish)


def remember(wish: Wish) -> None:
    """Let the next cell that says nothing be like this one."""
    global _last  # see cluster_for
    _last = wish


def _merge(wish: Wish) -> Wish:
    gpus = wish.gpus if wish.gpus is not None else _last.gpus
    env = wish.env if wish.env is not None else _last.env
    backend, launcher = _fitting(wish)
    return Wish(
        np=wish.np if wish.np is not None else _last.np or default_size(gpus, env),
        backend=backend,
        launcher=launcher,
        gpus=gpus,
        env=env,
    )


def _fitting(wish: Wish) -> tuple[str, str]:
    """Return backend and launcher: what is not named is as it was last, if that fits."""
    backend, launcher = wish.backend, wish.launcher
    if backend and launcher:
        check_fit(backend, launcher)
        return backend, launcher
    last = _last.backend or "ddp", _last.launcher or "engines"
    if backend:
        fits = backend == last[0] or (last[1] in FITTING[backend] and backend in ("ddp", "none"))
        return backend, last[1] if fits else FITTING[backend][0]
    if launcher and launcher not in FITTING[last[0]]:
        there = _cluster.backend if _cluster is not None and launcher == "engines" else "ddp"
        return {"horovodrun": "horovod", "kernel": "xla", "python": "none"}.get(
            launcher, there
        ), launcher
    return last[0], launcher or last[1]


def _changed(old: Cluster, wish: Wish) -> bool:
    return (
        wish.np not in (None, old.np)
        or wish.backend not in (None, old.backend)
        or wish.gpus not in (None, old.gpus)
        or wish.env not in (None, _last.env)
    )


def _tell_of_ranks(wish: Wish, now: Wish) -> list[str]:
    """Say that cells no longer run on XLA where only a launcher was named."""
    if _last.backend != "xla" or wish.backend is not None:
        return []
    return [
        f"Cells run on ranks with --backend {now.backend} from now on; --backend xla goes back."
    ]


def _tell_lost(names: list[str]) -> str:
    return f" Lost with the old ranks: {', '.join(names)}." if names else ""


def forget() -> None:
    """Stop every cluster and forget what cells asked for."""
    global _cluster, _last  # see cluster_for
    _cluster, _last = None, Wish()
    _past.clear()
    stop_all()


def _was_stopped() -> bool:
    """Whether somebody else, the sidebar's user say, has stopped the cluster."""
    return _cluster is not None and _cluster.stopped


def _forget_stopped() -> None:
    global _cluster  # see cluster_for
    if _cluster is not None:
        _past.extend(_cluster.jobs())
        _cluster = None


def stop() -> list[str]:
    """Stop the notebook's cluster; return the names that are lost."""
    global _cluster  # see cluster_for
    if _was_stopped():
        _forget_stopped()
    if _cluster is None:
        return []
    old, _cluster = _cluster, None
    _past.extend(old.jobs())
    lost = [] if old.lost else old.names()
    old.stop()
    return lost
