"""A process that writes the files of many ranks: metrics, resources, and a kernel's record.

``python -m benchmarks.streaming RANKS`` prints the place of its job, and writes until its input
ends. So a page can follow 64 ranks on a machine with two cores, which 64 processes would keep busy.
The costs of this process are not part of any figure.
"""

from __future__ import annotations

import json
import select
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nbdist.metrics.points_file import Column, Frame, append, open_to_append, points_file
from nbdist.published import state_file as records
from nbdist.published.state_file import BarRecord, JobRecord, RankRecord
from nbdist.rank.hub_connection import PULSE_SECONDS
from nbdist.rank.metrics.logger import PACK_SECONDS
from nbdist.rank.metrics.resource_file import Resources
from nbdist.wire.activity import Vitals

NAMES, HERTZ = 10, 20
JOB = "1"
RECORD_SECONDS = 0.5


class Ranks:
    """The ranks of a job that logs metrics and resources.

    Parameters
    ----------
    folder
        The job's folder.
    count
        The number of ranks.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._began = folder, time.time()
        self._files = [open_to_append(points_file(folder, JOB, rank)) for rank in range(count)]
        self._resources = [Resources(str(folder), JOB, rank, self._began) for rank in range(count)]
        self._step = 0

    def log(self) -> None:
        """Write what the ranks have logged since the last time."""
        steps = np.arange(self._step, self._step + int(HERTZ * PACK_SECONDS))
        times = time.time() + (steps - steps[-1]) / HERTZ
        for rank, file in enumerate(self._files):
            columns = [
                Column(
                    f"metric{i}", steps.tobytes(), times.tobytes(),
                    (2 / (1 + steps / 50) + rank / 4 + i).tobytes(),
                )
                for i in range(NAMES)
            ]  # fmt: skip
            append(file, Frame(0, columns))
        self._step += len(steps)

    def pulse(self) -> None:
        """Write the resources that the ranks use."""
        for rank, resources in enumerate(self._resources):
            resources.look(self._taken(rank))

    def _taken(self, rank: int) -> Vitals:
        return Vitals(400_000_000 + 1_000_000 * rank + 1000 * self._step, cpu=95.0)

    def record(self) -> records.Record:
        """Return the record that a kernel would publish about the ranks."""
        bar = BarRecord("steps", self._step, 100_000, HERTZ, left=(100_000 - self._step) / HERTZ)
        ranks = [
            RankRecord(
                rank, "busy", f"line {2 + self._step % 3}", device="cpu", cpu=95.0,
                memory=self._taken(rank).rss,
            )
            for rank in range(len(self._files))
        ]  # fmt: skip
        job = JobRecord(
            JOB, 2, "running", ranks, "for step in nbdist.progress(range(100_000)):", "engines", "",
            self._began, self._began, bars=[bar], folder=str(self._folder),
        )  # fmt: skip
        return records.of_this_process(records.KERNEL, id="benchmark", jobs=[job])


def main(count: int) -> None:
    """Write until the input of this process ends."""
    records.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    file = records.folder() / "benchmark.json"
    with tempfile.TemporaryDirectory(prefix="nbd-bench-") as folder:
        ranks = Ranks(Path(folder), count)
        records.write(file, ranks.record())
        print(json.dumps({"folder": Path(folder).name, "job": JOB}), flush=True)
        try:
            _run(ranks, file)
        finally:
            file.unlink()


def _run(ranks: Ranks, file: Path) -> None:
    began = time.monotonic()
    often = {
        ranks.log: PACK_SECONDS,
        ranks.pulse: PULSE_SECONDS,
        lambda: records.write(file, ranks.record()): RECORD_SECONDS,
    }
    due = dict.fromkeys(often, began)
    while True:
        pause = max(0.0, min(due.values()) - time.monotonic())
        if select.select([sys.stdin], [], [], pause)[0]:
            return
        for work, seconds in often.items():
            if time.monotonic() >= due[work]:
                work()
                due[work] += seconds


if __name__ == "__main__":
    main(int(sys.argv[1]))
