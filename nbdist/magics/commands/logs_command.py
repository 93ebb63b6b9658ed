"""``%dist logs``: shows what a rank has printed, whole, in part, or as it comes."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, BinaryIO

from nbdist.machine import amounts
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.magics.parsing.command import set_offer
from nbdist.magics.parsing.job_ids import find_job, offer_jobs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from typing_extensions import Self

    from nbdist.job.job import Job
    from nbdist.magics.parsing.command import Commands

MOST_LINES = 10_000
"""The most lines printed at once; the log itself has no limit."""
LOOK_SECONDS = 0.1


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(logs, "print all that a rank has printed: %%dist logs 1")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on printing until the job ends"
    )
    parser.add_argument(
        "--grep", metavar="RE", help="only lines that match this regular expression"
    )
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    job = parser.add_argument(
        "--job", metavar="JOB", help="the job's id, see %%dist jobs (default: the last job)"
    )
    set_offer(job, offer_jobs)
    parser.add_argument("rank", type=int, metavar="RANK", help="the rank that has printed")


def logs(args: argparse.Namespace) -> None:
    """Print what a rank has printed in the last job, or in another one (`--job`)."""
    if args.tail is not None and args.tail < 0:
        raise UsageMistake(f"--tail {args.tail} must not be negative")
    job = find_job(args.job)
    job.check_rank(args.rank)
    wanted = _pattern(args.grep)
    kept: deque[str] = deque(maxlen=args.tail if args.tail is not None else MOST_LINES)
    count = 0
    with _Reader(job, args.rank) as reader:
        for line in filter(wanted.search, reader.new()):
            count += 1
            kept.append(line)
        if count > len(kept) and args.tail is None:
            path = job.log(args.rank)
            print(f"… {amounts.counted(count - len(kept), 'line')} before these: see {path}")
        print("".join(kept), end="")
        if args.follow:
            _follow(job, reader, wanted)
        elif not count:
            what = f" that matches {args.grep!r}" if args.grep else ""
            print(f"Rank {args.rank} has printed nothing{what} in job {job.id}.")


def _follow(job: Job, reader: _Reader, wanted: re.Pattern[str]) -> None:
    try:
        ended = False
        while not ended:
            ended = job.done  # read before the last lines
            for line in filter(wanted.search, reader.new()):
                print(line, end="")
            sys.stdout.flush()
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        print("\n(The job goes on.)")


class _Reader:
    """Reads the job's part of a rank's log, line by line, never all of it at once."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job, self._rank = job, rank
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def new(self) -> Iterator[str]:
        """Return the lines printed since the last call."""
        begin, end = self._job.parts.get(self._rank, (0, 0))
        if end == 0 or not self._job.log(self._rank).exists():
            return  # the job has not begun, or the rank has printed nothing
        if self._file is None:
            self._file = self._job.log(self._rank).open("rb")
            self._file.seek(begin)
        while line := self._file.readline(-1 if end is None else end - self._file.tell()):
            yield line.decode("utf-8", errors="backslashreplace")


def _pattern(text: str | None) -> re.Pattern[str]:
    try:
        return re.compile(text or "")
    except re.error as err:
        msg = f"--grep {text!r} is no regular expression: {err}"
        raise UsageMistake(msg) from None
