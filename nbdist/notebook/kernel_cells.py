"""Runs cells in this process, the kernel: `--backend xla`. Main thread."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from nbdist.backends import xla
from nbdist.backends.xla import running
from nbdist.errors import UsageError
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.hub.link.log_folders import Logs
from nbdist.hub.running.kernel_run import InsideRun
from nbdist.job.job import Job, next_job_id
from nbdist.notebook.session import session
from nbdist.rank.kernel_rank import InsideRunner, Signals, in_main_thread
from nbdist.settings import Settings
from nbdist.wire import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbdist.backends.xla import Runtime
    from nbdist.job.states import Stop

__all__ = ["Prepared", "running", "runtime_for"]


class Prepared:
    """A cell that is ready to run in the kernel; its job can be shown already.

    Parameters
    ----------
    shell
        The notebook's.
    runtime
        XLA's runtime.
    code, number, lines, timeout, output
        As in `nbdist.notebook.cell_options.CellOptions`.
    arguments
        Arguments of the cell's program, in `sys.argv` after the program's name.

    Raises
    ------
    UsageError
        If it cannot run; nothing was started.
    """

    def __init__(
        self, shell: Any, runtime: Runtime, code: str, *, number: int, lines: int,
        timeout: float | None = None, output: str = "rank0", arguments: Sequence[str] = (),
    ) -> None:  # fmt: skip
        if not in_main_thread():
            raise UsageError(
                "an XLA cell runs on the main thread of the notebook's kernel, and not in a "
                "subshell or a fork"
            )
        if any(not job.done for job in session.kernel_jobs):
            raise UsageError(
                "another XLA cell is running, and this cell was started inside that cell"
            )
        settings = Settings.read()
        self._logs = Logs(settings)
        self._arguments = list(arguments)
        self.job = Job(
            id=next_job_id(), code=code, ranks=(0,), number=number, lines=lines, viewed=True,
            folder=self._logs.folder,
        )  # fmt: skip
        self._runner = InsideRunner(shell, runtime.names(), runtime.devices)
        self._signals = Signals()
        self._loop = hub_loop().loop
        self._run = hub_loop().wait(self._made(output, timeout, settings.hang_seconds))
        self.job.on_cancel = self._press
        self.job.on_stacks = lambda: {0: self._runner.stacks()}
        session.kernel_jobs.append(self.job)
        session.published.show_job(self.job, "kernel")

    async def _made(self, output: str, timeout: float | None, patience: float) -> InsideRun:
        return InsideRun(self.job, output, timeout, patience, self._runner, self._signals)

    def _press(self, why: Stop) -> None:
        self._loop.call_soon_threadsafe(self._run.press, why)

    def run(self) -> None:
        """Run the cell to its end; its result is in the job."""
        job = self.job
        message = messages.Run(
            job=job.id, code=job.code, filename_line=job.lines, execution_count=job.number,
            logs=str(job.folder), shown=0, cwd="", sys_path=[], environ={},
            arguments=self._arguments, began=time.time(),
        )  # fmt: skip

        def send(word: messages.Display | messages.Pulse) -> None:
            self._loop.call_soon_threadsafe(self._run.hear, word)

        try:
            with self._signals.heard():
                hub_loop().wait(self._run.begin())
                began = time.monotonic()
                done = self._runner.run_here(message, send)
                hub_loop().wait(self._run.end(done, time.monotonic() - began))
        finally:
            self._signals.close()
            self._logs.close()


def runtime_for(wanted: int | None, usual: int, environ: dict[str, str]) -> Runtime:
    """Return XLA's runtime; start it if needed, see `nbdist.backends.xla.start`."""
    changed = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    if changed and xla.running() is not None:
        raise UsageError(
            f"--env {', '.join(changed)}: XLA's runtime runs already in this kernel, and has read "
            f"its environment. {xla.RESTART}, and then run this cell first"
        )
    os.environ.update(changed)
    return xla.start(wanted, usual)
