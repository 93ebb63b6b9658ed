"""``%dist tensorboard``: shows a job's metrics in TensorBoard."""

from __future__ import annotations

import argparse
import html
import os
from typing import TYPE_CHECKING

from IPython.display import display

from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.magics.parsing.command import set_offer
from nbdist.magics.parsing.job_ids import find_job, offer_jobs
from nbdist.metrics.points_file import points_file
from nbdist.notebook.session import session

if TYPE_CHECKING:
    from nbdist.job.job import Job
    from nbdist.magics.parsing.command import Commands

HEIGHT = 800
HIGHEST_PORT = 65535
PROXY = "TENSORBOARD_PROXY_URL"
"""TensorBoard's own setting: its URL for browsers on other machines."""


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        tensorboard, "show a job's metrics in TensorBoard: %%dist tensorboard 3; end it: --stop"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="N",
        help="the port of TensorBoard (default: a free one)",
    )
    parser.add_argument(
        "--stop", action="store_true", help="end the TensorBoard of this job, or all"
    )
    job = parser.add_argument(
        "job", nargs="?", metavar="JOB",
        help="the job, see %%dist jobs (default: the last job that has logged metrics)",
    )  # fmt: skip
    set_offer(job, offer_jobs)


def tensorboard(args: argparse.Namespace) -> None:
    """Show a job's metrics in TensorBoard, a run for each rank; they grow while it runs."""
    if args.stop:
        stopped = session.stop_boards(args.job)
        told = f"TensorBoard was ended for job {', '.join(stopped)}."
        print(told if stopped else "No TensorBoard of this notebook is running.")
        return
    job = find_job(args.job) if args.job else _last()
    if job.done and not _has_metrics(job):
        raise UsageMistake(f"job {job.id} has ended and logged nothing: see nbdist.log")
    board = session.open_board(job, args.port)
    text = f"Job {job.id} in TensorBoard: {board.url} (`%dist tensorboard --stop` ends it)"
    display({"text/plain": text, "text/html": _page(text, board.url)}, raw=True)


def _has_metrics(job: Job) -> bool:
    return any(points_file(job.folder, job.id, rank).exists() for rank in job.ranks)


def _last() -> Job:
    for job in reversed(session.jobs()):
        if _has_metrics(job):
            return job
    raise UsageMistake("no job has logged anything yet: see nbdist.log")


def _page(text: str, url: str) -> str:
    port = url.rstrip("/").rpartition(":")[2]
    shown = html.escape(os.environ.get(PROXY, url).replace("%PORT%", port))
    link = html.escape(text).replace(url, f'<a href="{shown}" target="_blank">{url}</a>')
    frame = f'<iframe src="{shown}" width="100%" height="{HEIGHT}" frameborder="0"></iframe>'
    return f"<div>{link}</div>{frame}"
