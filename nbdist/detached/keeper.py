"""The keeper: the process with the hub of a detached job, which outlives the kernel.

It runs as ``python -m nbdist.detached.keeper FOLDER`` (the job's folder) in its own session. The
state of the job is always on disk (`nbdist.detached.job_folders`, `nbdist.detached.job_story`), and
kernels only read it. The keeper ends with the job.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nbdist.detached import job_folders as keeping
from nbdist.detached import keeper_order, pulses_file, returned_values
from nbdist.detached.job_story import End, Writer
from nbdist.errors import NbdistError
from nbdist.hub.running.script_run import ScriptRun
from nbdist.job import report
from nbdist.job.job import Job
from nbdist.job.states import INTERRUPT, WITH_KEEPER
from nbdist.launchers.host.engines import Host
from nbdist.machine import leftovers
from nbdist.machine.process_lives import BEAT_SECONDS
from nbdist.published import state_file as records
from nbdist.published.beacon import Beacon, Commands
from nbdist.published.records import ShownJob
from nbdist.published.state_file import Record
from nbdist.settings import Settings

if TYPE_CHECKING:
    from nbdist.detached.keeper_order import Order

LOOK_SECONDS = 0.2
STACKS_SECONDS = 10.0


class Keeper:
    """Runs one detached job."""

    def __init__(self, folder: Path, order: Order) -> None:
        kept = order.kept
        self._folder, self._kept, self._plan = folder, kept, order.plan
        self._job = Job(
            id=kept.id, code=kept.code, ranks=tuple(range(kept.np)), folder=folder,
            number=kept.number, lines=kept.lines, background=True,
        )  # fmt: skip
        self._story = Writer(self._job)
        self._beat_at = time.monotonic()
        self._heard = pulses_file.Heard({}, set())
        self._shown = ShownJob(self._job, kept.launcher, detached=True)

    async def keep(self) -> None:
        """Run the job to its end, and write how it ended."""
        settings, loop = Settings.read(), asyncio.get_running_loop()
        host = Host(settings.home, lambda _: None, controller=False)
        run = ScriptRun(host, self._job, self._plan, self._story, settings.hang_seconds)
        beacon = Beacon(self._tell, _commands(run, loop))
        try:
            await beacon.start()
            loop.add_signal_handler(signal.SIGTERM, run.press, WITH_KEEPER)
            running = loop.create_task(run.run())
            while not running.done():
                await asyncio.wait({running}, timeout=LOOK_SECONDS)
                why = keeping.asked_to_stop(self._folder)
                if why is not None:
                    run.press(why)
                self._show_life()
        finally:
            self._write_end()
            await host.stop()
            await beacon.stop(leave=self._tell())  # the end stays visible until it is removed

    def _tell(self) -> Record:
        return records.of_this_process(records.KEEPER, jobs=[self._shown.record()])

    def _show_life(self) -> None:
        kept, job = self._kept, self._job
        self._show_pulses()
        if job.state == "running" and kept.state != job.state:
            kept.state, kept.began = job.state, job.began
            keeping.write(self._folder, keeping.STATE, kept)
        if time.monotonic() - self._beat_at > BEAT_SECONDS:
            self._beat_at = time.monotonic()
            leftovers.beat()

    def _show_pulses(self) -> None:
        heard = pulses_file.Heard(dict(self._job.pulses), set(self._job.gone))
        if heard != self._heard:
            self._heard = heard
            pulses_file.write(self._folder, heard)

    def _write_end(self) -> None:
        """Write the returned values, then the end: a reader of the end finds everything."""
        kept, job = self._kept, self._job
        if not job.done:  # an error of ours
            job.state = "failed"
            job.end(NbdistError("nbdist itself failed; see keeper.log in the job's folder"))
        there = []
        for rank, offer in job.returned.items():
            try:
                returned_values.write(self._folder, rank, offer)
                there.append(rank)
            except OSError as err:
                job.state = "failed"
                job.error = NbdistError(f"what rank {rank} returned could not be kept: {err}")
        record = End(
            job.state, job.seconds, job.began, job.parts, job.errors, job.notes, job.restarts,
            report.as_words(job.error), sorted(there),
        )  # fmt: skip
        self._show_pulses()
        self._story.end(record)
        kept.state, kept.began, kept.seconds = job.state, job.began, job.seconds
        kept.told = job.told()
        keeping.write(self._folder, keeping.STATE, kept)


def _commands(run: ScriptRun, loop: asyncio.AbstractEventLoop) -> Commands:
    """Return the commands that other processes may send; they run on threads."""

    def interrupt(job: str) -> None:
        del job  # there is only one
        loop.call_soon_threadsafe(run.press, INTERRUPT)

    def dump(job: str) -> dict[str, dict[str, str]]:
        del job
        found = asyncio.run_coroutine_threadsafe(run.stacks(), loop).result(STACKS_SECONDS)
        return {"stacks": {str(rank): text for rank, text in found.items()}}

    return {"interrupt": interrupt, "stacks": dump}


def main(folder: Path) -> None:
    """Run the keeper of the job in this folder."""
    for signum in (signal.SIGINT, signal.SIGHUP):  # a terminal's; handled, so that ranks are not
        signal.signal(signum, lambda *_: None)  # born with them ignored
    order = keeper_order.take(folder)
    leftovers.sign(folder)
    asyncio.run(Keeper(folder, order).keep())
    leftovers.disown(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
