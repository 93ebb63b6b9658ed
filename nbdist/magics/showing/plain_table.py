"""Plain tables for the terminal and the notebook alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nbdist.detached.job_folders import id_of
from nbdist.job.job import Job, how_died, show_ranks
from nbdist.machine.amounts import UNKNOWN, clock, in_bytes, in_percent, in_time, known
from nbdist.machine.tables import text_table

if TYPE_CHECKING:
    from nbdist.detached.job_folders import Kept, Unreadable
    from nbdist.hub.link.ranks import Rank
    from nbdist.wire.inspection import Condition


MOST_WIDE = 50
"""Characters of a line of code or of a message that a table has room for."""


def rank_table(ranks: list[Rank], conditions: dict[int, Condition]) -> str:
    """Return a row for each rank."""
    titles = ("rank", "host", "pid", "device", "CPU", "memory", "GPU", "GPU memory", "state")
    rows = []
    for rank in ranks:
        told = conditions.get(rank.rank)
        place = (str(rank.rank), rank.host, str(rank.pid))
        rows.append((*place, *_taken(told), _state(rank, told)))
    return text_table(titles, rows)


def _taken(told: Condition | None) -> tuple[str, str, str, str, str]:
    if told is None:
        return (UNKNOWN,) * 5
    memory, takes = told.memory, told.doing.vitals
    return (
        told.doing.device, known(takes.cpu, in_percent),
        in_bytes(memory.unique or memory.rss), known(takes.gpu, in_percent),
        known(takes.gpu_memory, in_bytes),
    )  # fmt: skip


def _state(rank: Rank, told: Condition | None) -> str:
    if rank.death is not None:
        return f"dead: {how_died(rank.death)}"
    if rank.state == "busy" and told is None:
        return "busy, does not answer (it may hold the GIL)"
    if told is None or not told.doing.job:
        return rank.state
    doing = told.doing
    line = f"running line {doing.line} of the cell" if doing.line else "running"
    if doing.waiting is not None:
        return f"{line}, in {doing.waiting.op} for {in_time(int(doing.waiting.since))}"
    return line


def job_table(jobs: list[Job]) -> str:
    """Return a row for each job."""
    if not jobs:
        return "No cell has run yet."
    titles = ("job", "cell", "ranks", "state", "started", "took", "first line", "result")
    rows = [
        (
            job.id, f"In [{job.number}]", show_ranks(job.ranks), job.state, _clock(job.began),
            in_time(_took(job)) if job.began else "", shortened(first_line(job.code)),
            shortened(job.told()),
        )
        for job in jobs
    ]  # fmt: skip
    return text_table(titles, rows)


def detached_table(jobs: list[tuple[Kept, str]], unreadable: list[Unreadable]) -> str:
    """Return a row for each detached job, given with its state in words."""
    titles = (
        "job", "launcher", "ranks", "host", "state", "started", "took", "first line", "result",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for kept, state in jobs:
        took = kept.seconds if kept.ended or kept.began is None else time.time() - kept.began
        rows.append(
            (
                kept.id, kept.launcher, str(kept.np), kept.host, state, _date(kept.created),
                "" if took is None else in_time(took), shortened(first_line(kept.code)),
                shortened(kept.told),
            )
        )  # fmt: skip
    rows += [
        (id_of(broken.folder), *[""] * 3, "cannot be read", *[""] * 3, shortened(broken.why))
        for broken in unreadable
    ]
    return text_table(titles, rows)


def first_line(code: str) -> str:
    """Return the first line of a cell that says something."""
    return next((line for line in code.splitlines() if line.strip()), "")


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _took(job: Job) -> float:
    return job.seconds if job.seconds is not None else time.time() - (job.began or 0)


def _clock(at: float | None) -> str:
    return "" if at is None else clock(at)


def shortened(text: str) -> str:
    """Return what of a line there is room for in a table."""
    return text if len(text) <= MOST_WIDE else text[: MOST_WIDE - 1] + "…"


def job_page(job: Job) -> str:
    """Return all that is known of one job."""
    lines = [repr(job), f"In [{job.number}], submitted at {clock(job.created)}"]
    if job.began is None and not job.done and job.waits_for:
        lines.append(f"waits for {', '.join(job.waits_for)}")
    if job.error is not None:
        lines += ["", *str(job.error).splitlines()]
    lines += ["", *(f"    {line}" for line in job.code.splitlines()), ""]
    lines += [f"rank {rank}: {job.log(rank)}" for rank in job.ranks]
    return "\n".join(lines)
