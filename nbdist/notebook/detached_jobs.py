"""Starts detached jobs, each in a process of its own that keeps it. Any thread."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
from IPython.core.interactiveshell import InteractiveShell

from nbdist.detached import attached_view, keeper_order, returned_values
from nbdist.detached import job_folders as keeping
from nbdist.detached.job_folders import Kept, Unreadable
from nbdist.detached.keeper_order import Order
from nbdist.errors import LaunchError, UsageError
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.job.output import OUTPUTS
from nbdist.job.states import INTERRUPT
from nbdist.launchers.host.warm_process_client import tail_in_words
from nbdist.machine.amounts import in_seconds
from nbdist.machine.operating_system import environ_anywhere, private
from nbdist.notebook.names_both_ways import cannot_return
from nbdist.notebook.returned_names import BindsAtEnd, FromDetached, bind_returned
from nbdist.notebook.script_cells import make_folder
from nbdist.notebook.session import session
from nbdist.settings import Settings, no_place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nbdist.hub.running.launch_plan import Plan
    from nbdist.job.job import Job
    from nbdist.notebook.script_cells import Writable

LOOK_SECONDS = 0.02
LEAVE_SECONDS = 20.0
"""How long to wait for a keeper's end: it stops its processes after it has reported the job's."""


def detach(
    script: Writable, plan: Plan, code: str, *, number: int, lines: int, backend: str
) -> Kept:
    """Start a job that outlives this process, and wait until it runs.

    Parameters
    ----------
    script, plan, code, number, lines
        As for `nbdist.notebook.script_cells.submit`.
    backend
        What is said of it in lists.

    Raises
    ------
    UsageError
        If the script cannot be written.
    LaunchError
        If it did not come to run; nothing is left of it.
    """
    settings = Settings.read()
    folder = make_folder(script, settings).folder
    kept = Kept(
        id=keeping.id_of(folder), code=code, number=number, lines=lines, np=plan.np,
        launcher=plan.launcher, backend=backend, output=plan.output, returns=plan.returns,
    )  # fmt: skip
    try:
        keeping.write(folder, keeping.STATE, kept)
        keeper_order.give(folder, Order(kept, plan))
        _start(folder, kept.id, settings.start_seconds)
    except LaunchError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as err:
        shutil.rmtree(folder, ignore_errors=True)
        raise LaunchError(no_place(err)) from err
    except KeyboardInterrupt:  # nobody knows the job yet
        keeping.stop(folder, INTERRUPT)
        raise
    return kept


def _start(folder: Path, id_: str, seconds: float) -> None:
    with open(folder / "keeper.log", "ab", opener=private) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nbdist.detached.keeper", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
            env=environ_anywhere(),
        )
    # This reaps the keeper, if it ends before this process.
    threading.Thread(target=process.wait, name="nbdist-keeper", daemon=True).start()
    deadline = time.monotonic() + seconds
    while (kept := keeping.read(folder)).state == "starting":
        log_tail = tail_in_words(folder / "keeper.log")
        if process.returncode is not None:
            raise LaunchError(f"job {id_} did not start; {log_tail}")
        if time.monotonic() > deadline:
            process.kill()  # the processes that it has started end with it
            raise LaunchError(
                f"job {id_} did not start within {in_seconds(seconds)} (NBDIST_START_SECONDS); "
                f"{log_tail}"
            )
        time.sleep(LOOK_SECONDS)
    if kept.ended and kept.began is None:
        raise _error(id_)


def _error(id_: str) -> LaunchError:
    """Return an error that says why a job has never run."""
    job = handle(id_)
    job.until_end()
    return job.error if isinstance(job.error, LaunchError) else LaunchError(str(job.error))


def find(id_: str | None = None) -> tuple[Path, Kept]:
    """Return a detached job's folder and state; by default of the latest, preferably a running one.

    Raises
    ------
    UsageError
        If there is none.
    """
    found, unreadable = keeping.all_kept(Settings.read())
    if id_ is None:
        running = [item for item in found.items() if not item[1].ended]
        if not found:
            raise UsageError("no job was detached: `%%distributed --detach` starts one")
        return (running or list(found.items()))[-1]
    for folder, kept in found.items():
        if kept.id == id_:
            return folder, kept
    for broken in unreadable:
        if keeping.id_of(broken.folder) == id_:
            raise UsageError(f"job {id_} in {broken.folder} cannot be read: {broken.why}")
    raise UsageError(f"there is no detached job {id_}; `%dist jobs` lists them")


def attach(id_: str | None = None, *, output: str | None = None) -> Job:
    """Return a handle on a detached job, from whichever notebook it was started.

    Parameters
    ----------
    id_
        The job's id; by default the latest job, preferably a running one.
    output
        Which ranks' output `Job.events` has; by default as the job was started.

    Returns
    -------
    Job
        The handle is kept up to date: `wait()` waits for the job's end and raises its error,
        `cancel()` stops the job, `output(rank)` is all that a rank has printed. In a notebook the
        names of ``--return`` are bound by `wait()`, or else before the first cell after the end;
        `pull()` returns their values anywhere.

    Raises
    ------
    UsageError
        If there is no such job, or no such `output`.
    """
    job = handle(id_, output=output)
    if job.on_waited is None and InteractiveShell.initialized():
        shell = InteractiveShell.instance()
        BindsAtEnd(
            shell, job, lambda: bind_returned(FromDetached(job), job, shell.user_ns, print),
            lambda err: sys.stderr.write(f"Job {job.id}: {err}\n"),
        )  # fmt: skip
    return job


def handle(id_: str | None, *, output: str | None = None, viewed: bool = False) -> Job:
    """Return a handle on a detached job that binds nothing; parameters as for `attach`.

    Parameters
    ----------
    viewed
        Whether the caller will read all of `Job.events`.
    """
    if output not in (None, *OUTPUTS):
        raise UsageError(f"output={output!r} is none of {', '.join(OUTPUTS)}")
    folder, kept = find(id_)
    known = session.attached.get(kept.id)
    if not viewed and known is not None and not known.done:
        return known
    job = attached_view.make_job(folder, kept, viewed=viewed)
    job.on_pull = lambda names: _pulled(job, names)
    job.task = hub_loop().soon(attached_view.follow(job, kept, output or kept.output))
    if not viewed:
        session.attached[kept.id] = job
    return job


def _pulled(job: Job, names: Sequence[str]) -> dict[str, Any]:
    """Return values of an ended job, from its folder: a notebook may have bound them already."""
    try:
        offer = returned_values.read(job.folder, job.ranks[0])
    except FileNotFoundError as err:
        raise UsageError(
            f"job {job.id} has returned nothing: its cell has no --return, or its folder is gone"
        ) from err
    if names:
        refused = {name: why for name, why in offer.refused.items() if name in names}
        offer = msgspec.structs.replace(offer, refused=refused)
    if offer.refused:
        raise UsageError(cannot_return(offer))
    values = FromDetached(job).take(offer)
    keeping.note_taken(job.folder)
    job.returned.clear()
    try:
        return {name: values[name] for name in names or values}
    except KeyError as err:
        raise UsageError(f"job {job.id} does not return {err}: {', '.join(values)}") from err


def listed() -> tuple[list[tuple[Kept, str]], list[Unreadable]]:
    """Return all detached jobs, each with its state in words, and the files that cannot be read."""
    found, unreadable = keeping.all_kept(Settings.read())
    return [(kept, keeping.state_of(folder, kept)) for folder, kept in found.items()], unreadable


def clean(id_: str | None = None) -> tuple[list[Kept], list[Kept]]:
    """Remove detached jobs that have ended, or one of them, with logs.

    Returns
    -------
    tuple
        The jobs removed, and those that stay: they have returned what nobody has taken.

    Raises
    ------
    UsageError
        If there is no such job.
    """
    only = None if id_ is None else find(id_)[0]
    settings, until = Settings.read(), time.monotonic() + LEAVE_SECONDS
    while keeping.leaving(settings, only) and time.monotonic() < until:
        time.sleep(0.05)
    removed, stay = keeping.clean(settings, only)
    for kept in removed:
        session.attached.pop(kept.id, None)
    return removed, stay
