"""``%dist jobs``: the jobs of this notebook, and detached ones of all notebooks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nbdist.detached.job_folders import id_of
from nbdist.job.named_ranks import show_ranks
from nbdist.machine.amounts import clock, in_time
from nbdist.machine.tables import text_table
from nbdist.magics.parsing.command import say, set_offer
from nbdist.magics.parsing.job_ids import find_job, offer_jobs
from nbdist.notebook import detached_jobs
from nbdist.notebook.session import session

if TYPE_CHECKING:
    import argparse

    from nbdist.detached.job_folders import Kept, Unreadable
    from nbdist.job.job import Job
    from nbdist.magics.parsing.command import Commands

MOST_WIDE = 50
"""The most characters of a line of code or of a message in a table."""


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        jobs, "list this notebook's jobs and detached jobs, or show one: %%dist jobs 3"
    )
    parser.add_argument(
        "--clean", action="store_true",
        help="remove detached jobs that have ended, or only JOB, with their logs; a job whose "
        "returned values nobody has taken is removed only by its id",
    )  # fmt: skip
    job = parser.add_argument(
        "job", nargs="?", metavar="JOB", help="show all about the job with this id"
    )
    set_offer(job, offer_jobs)


def jobs(args: argparse.Namespace) -> None:
    """List the notebook's jobs, and the detached jobs of all notebooks."""
    if args.clean:
        _clean(args.job)
    elif args.job is not None:
        say(_job_page(find_job(args.job)))
    else:
        found, unreadable = detached_jobs.listed()
        if session.jobs() or not (found or unreadable):
            say(_job_table(session.jobs()))
        if found or unreadable:
            say(f"\nDetached:\n{_detached_table(found, unreadable)}")


def _clean(id_: str | None) -> None:
    removed, stay = detached_jobs.clean(id_)
    none = "no detached job has ended" if id_ is None else f"{id_} has not ended"
    if removed or not stay:
        say(f"Removed: {', '.join(kept.id for kept in removed) or f'nothing, {none}'}.")
    for kept in stay:
        say(
            f"Kept: {kept.id}. It returned {', '.join(kept.returns)}, and nobody has taken that: "
            f"`%dist attach {kept.id}` takes it, `%dist jobs --clean {kept.id}` discards it."
        )


def _job_table(jobs: list[Job]) -> str:
    """Return a row for each job."""
    if not jobs:
        return "No cell has run yet."
    titles = ("job", "cell", "ranks", "state", "started", "took", "first line", "result")
    rows = [
        (
            job.id, f"In [{job.number}]", show_ranks(job.ranks), job.state, _clock(job.began),
            in_time(_took(job)) if job.began else "", _shortened(_first_line(job.code)),
            _shortened(job.told()),
        )
        for job in jobs
    ]  # fmt: skip
    return text_table(titles, rows)


def _detached_table(jobs: list[tuple[Kept, str]], unreadable: list[Unreadable]) -> str:
    """Return a row for each detached job; `jobs` has the job and its state in words."""
    titles = (
        "job", "launcher", "ranks", "host", "state", "started", "took", "first line", "result",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for kept, state in jobs:
        took = kept.seconds if kept.ended or kept.began is None else time.time() - kept.began
        rows.append(
            (
                kept.id, kept.launcher, str(kept.np), kept.host, state, _date(kept.created),
                "" if took is None else in_time(took), _shortened(_first_line(kept.code)),
                _shortened(kept.told),
            )
        )  # fmt: skip
    rows += [
        (id_of(broken.folder), *[""] * 3, "cannot be read", *[""] * 3, _shortened(broken.why))
        for broken in unreadable
    ]
    return text_table(titles, rows)


def _first_line(code: str) -> str:
    """Return the first line of a cell that is not blank."""
    return next((line for line in code.splitlines() if line.strip()), "")


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _took(job: Job) -> float:
    return job.seconds if job.seconds is not None else time.time() - (job.began or 0)


def _clock(at: float | None) -> str:
    return "" if at is None else clock(at)


def _shortened(text: str) -> str:
    """Return a line, cut to fit into a table."""
    return text if len(text) <= MOST_WIDE else text[: MOST_WIDE - 1] + "…"


def _job_page(job: Job) -> str:
    """Return all that is known of one job."""
    lines = [repr(job), f"In [{job.number}], submitted at {clock(job.created)}"]
    if job.began is None and not job.done and job.waits_for:
        lines.append(f"waits for {', '.join(job.waits_for)}")
    if job.error is not None:
        lines += ["", *str(job.error).splitlines()]
    lines += ["", *(f"    {line}" for line in job.code.splitlines()), ""]
    lines += [f"rank {rank}: {job.log(rank)}" for rank in job.ranks]
    return "\n".join(lines)
