"""Runs a cell in the kernel (`--backend xla`), and shows it from a thread while it runs.

The cell occupies the main thread. So another thread sends the job's output to the cell's output
area, as for background jobs (`nbdist.magics.showing.area`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbdist.backends.models.variable_paths import at, last_name
from nbdist.cell.definitions.defined import cell_number
from nbdist.errors import UsageError
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.launchers.rank_counts import check_size, default_size
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.magics.showing.area import NotebookArea, TerminalArea
from nbdist.magics.showing.front_end import in_notebook, metrics_how
from nbdist.magics.showing.job_output import notice, pass_on
from nbdist.notebook import current_cluster, kernel_cells
from nbdist.notebook.session import Wish, session
from nbdist.widgets.live_metrics import LiveMetrics

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from nbdist.job.events import Shown
    from nbdist.job.job import Job

log = logging.getLogger("nbdist")
UNFIT = {
    "ranks": ("--ranks", "there is one rank, which runs on all devices"),
    "background": ("--async", "the cell needs the kernel's main thread"),
    "detach": ("--detach", "the cell ends with the kernel (--launcher torchrun runs a script)"),
    "save": ("--save", "the cell is not a script (use --launcher torchrun)"),
    "scale": ("--scale", "XLA's runtime starts only once in a process"),
    "gpus": ("--gpus", "PJRT_DEVICE chooses the devices"),
    "no_bring": ("--no-bring", "the cell runs where the notebook's names are"),
}
"""Flags that a cell in the kernel cannot have, by attribute of the parsed line, and why."""


def check_flags(args: argparse.Namespace) -> None:
    """Raise `UsageMistake` for flags that a cell in the kernel cannot have."""
    for name, (flag, why) in UNFIT.items():
        if getattr(args, name) not in (None, False):
            raise UsageMistake(f"{flag} does not go with --backend xla in the kernel: {why}")


def run_inside(
    shell: Any,  # IPython's
    args: argparse.Namespace,
    wish: Wish,
    cell: str,
    lines: int,
) -> None:
    """Run a cell in this process and show its output.

    Raises
    ------
    UsageMistake
        If the cell cannot run; nothing was started.
    RankError, Interrupted
        If the cell failed, or was stopped.
    """
    try:
        runtime, told = _runtime(wish)
        prepared = kernel_cells.Prepared(
            shell, runtime, cell, number=cell_number(shell), lines=lines, timeout=args.timeout,
            output=args.output, arguments=args.arguments,
        )  # fmt: skip
    except UsageError as err:
        raise UsageMistake(str(err)) from err
    if told:
        notice(told)
    with _shown(shell, prepared.job), _no_interrupts():
        prepared.run()
    if prepared.job.error is not None:
        raise prepared.job.error
    _bind_returned(shell, args.returns)


def _bind_returned(shell: Any, paths: list[str]) -> None:  # IPython's shell
    """Bind what the cell returns under a path such as `trainer.model`; names are bound already."""
    missing = []
    for path in paths:
        try:
            shell.user_ns[last_name(path)] = at(shell.user_ns, path)
        except UsageError:
            missing.append(f"`{path}`")
    if missing:
        raise UsageMistake(f"{', '.join(missing)} cannot be returned: not defined after the cell.")


def _runtime(wish: Wish) -> tuple[Any, str]:
    """Return XLA's runtime, and a text about it if it has just been started, else ''."""
    if wish.np is not None:
        check_size(wish.np)
    now = current_cluster.wished(wish)
    before = kernel_cells.running()
    usual = now.np or default_size(now.gpus, now.env)
    if before is None:
        session.last = now  # also if XLA does not start: the next cell is for XLA, too
    runtime = kernel_cells.runtime_for(wish.np, usual, wish.env or {})
    session.last = replace(now, np=runtime.count)
    if before is not None:
        return runtime, ""
    return runtime, f"XLA runs in this kernel on {runtime.devices}, until the kernel ends."


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Leave interrupts to the job: outside the cell's own code there is nothing to stop.

    `nbdist.rank.kernel_rank.Signals` passes each interrupt to the hub, which stops the job.
    """
    kept = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)


@contextlib.contextmanager
def _shown(shell: Any, job: Job) -> Iterator[None]:
    """Show the job in its cell while the body runs, to the job's end."""
    with contextlib.ExitStack() as stack:
        area: _Cell | TerminalArea
        if in_notebook(shell):
            area = _Cell(shell.display_pub, f"nbdist-job-{job.id}", job.number)
        else:
            screen = os.fdopen(os.dup(1), "w", encoding="utf-8")  # the cell's 1 is a log
            area = TerminalArea(stack.enter_context(screen))
        live = LiveMetrics(job, area, metrics_how(shell))
        name = f"nbdist-job-{job.id}"
        thread = threading.Thread(target=_follow, args=(job, area, live), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            if not job.done:
                # A fault of nbdist is being raised.
                hub_loop().loop.call_soon_threadsafe(job.end, None)
            thread.join()


def _follow(job: Job, area: _Cell | TerminalArea, live: LiveMetrics) -> None:
    while (event := job.next_event(live.refresh)) is not None:
        try:
            pass_on(event, area)
        except Exception as err:  # the job ends only if its events are taken
            log.debug("job %s could not be shown: %s", job.id, err)
    live.end()


class _Cell(NotebookArea):
    """The running cell: the value of the last expression becomes the cell's own value."""

    def __init__(self, publisher: Any, prefix: str, number: int) -> None:  # ipykernel's
        super().__init__(publisher, prefix)
        self._number = number

    def shown(self, event: Shown) -> None:
        """See `nbdist.magics.showing.job_output.Area`."""
        if event.kind == "execute_result":
            content = {"execution_count": self._number, **event.content}
            self._send("execute_result", content)
        else:
            super().shown(event)
