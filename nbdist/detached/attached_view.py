"""Shows a detached job in any process: follows its logs and reads its story. Hub's thread."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nbdist.detached import job_folders as keeping
from nbdist.detached import pulses_file, returned_values
from nbdist.detached.job_story import End, Quiet, Reader, Told
from nbdist.errors import NbdistError
from nbdist.job import report
from nbdist.job.job import Job
from nbdist.job.output import Output
from nbdist.launchers.host.warm_process_client import tail_in_words

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.detached.job_folders import Kept

LOOK_SECONDS = 0.02
UNVIEWED_SECONDS = 0.25
"""How often the job's files are read, the second number without a viewer."""
ALIVE_SECONDS = 1.0
"""How often we check that its keeper is alive."""


def make_job(folder: Path, kept: Kept, *, viewed: bool) -> Job:
    """Return a `Job` for a detached job; `follow` keeps it up to date."""
    ranks = tuple(range(kept.np))
    job = Job(
        id=kept.id, code=kept.code, ranks=ranks, folder=folder, number=kept.number,
        lines=kept.lines, state=kept.state, created=kept.created, began=kept.began,
        viewed=viewed, background=True,
    )  # fmt: skip
    job.parts = dict.fromkeys(ranks, (0, None))
    job.on_cancel = lambda why: keeping.stop(folder, why)
    return job


async def follow(job: Job, kept: Kept, how: str) -> None:
    """Keep a job up to date until its end; in any case it has ended when this returns.

    Parameters
    ----------
    job
        The result of `make_job`.
    kept
        The state of the job.
    how
        Which ranks are shown, see `nbdist.job.output.OUTPUTS`.
    """
    error: NbdistError | None
    try:
        output = Output(job, how)
        end = await _until_end(job, kept, output)
        job.state, job.seconds, job.began = end.state, end.seconds, end.began
        job.errors, job.notes, job.restarts = end.errors, end.notes, end.restarts
        pulses_file.show(job.folder, job)
        job.parts = {rank: end.parts.get(rank, (0, 0)) for rank in job.ranks}
        while not output.finish() and job.viewed:
            await asyncio.sleep(LOOK_SECONDS)
        for rank in end.returned:
            job.returned[rank] = returned_values.read(job.folder, rank)
        error = report.from_words(end.error)
    except NbdistError as err:
        job.state, error = "failed", err
    except FileNotFoundError:
        job.state = "failed"
        error = NbdistError(
            f"the folder of job {job.id} was removed, and its logs with it; if the job was still "
            "running, nbdist ends it"
        )
    except Exception as err:  # any error must end the job, not hang it
        job.state = "failed"
        error = NbdistError(f"job {job.id} cannot be followed: {type(err).__name__}: {err}")
        error.__cause__ = err
    job.end(error)


async def _until_end(job: Job, kept: Kept, output: Output) -> End:
    story = Reader(job.folder)
    output.begin()
    look_at = 0.0
    while True:
        gone = time.monotonic() >= look_at and keeping.lost(job.folder, kept)
        # Checked before the story is read: a keeper writes the end before it ends itself.
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + ALIVE_SECONDS
            kept = keeping.read(job.folder)
            job.state, job.began = kept.state, kept.began
            pulses_file.show(job.folder, job)
        for record in story.new():
            match record:
                case End():
                    return record
                case Told():
                    job.tell(record.key, record.text, warns=record.warns)
                case Quiet():
                    output.quiet()
                case display:
                    output.display(display)
        output.look()
        if gone:
            log = tail_in_words(job.folder / "keeper.log")
            raise NbdistError(
                f"the keeper of job {job.id}, a process on {kept.host}, has died, and the job's "
                f"ranks with it; {log}"
            )
        await asyncio.sleep(LOOK_SECONDS if job.viewed else UNVIEWED_SECONDS)
