"""Runs a cell on this rank, by IPython's `run_cell_async`, so that it can be interrupted.

`CellRunner.run` is the only place that runs the user's code. The agent's thread reads `job` and
`line()`, and calls `interrupt()`; everything else belongs to the main thread.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.errors import Interrupted
from nbdist.rank.foreground import Foreground, interrupt_thread
from nbdist.rank.looking import vitals
from nbdist.rank.running.display import RichDisplay, as_text
from nbdist.rank.running.lines import Aligned, align
from nbdist.rank.running.plain_cells import transformed
from nbdist.rank.running.questions import no_questions, refuse_breakpoint
from nbdist.rank.running.rank_output import Log
from nbdist.rank.values import ipython_history as kept
from nbdist.rank.values.user_errors import innermost, make_quick_to_show, text_of, traces_of
from nbdist.wire.elastic_rounds import LOST_TEXT
from nbdist.wire.messages import Display, Done, Fault, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType, TracebackType

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from nbdist.wire.group_reports import Waiting


TIMED = ("<timed exec>", "<timed eval>")
"""IPython's file names for the code under `%%time`."""


class Place(Protocol):
    """Copies the notebook's settings to a rank; see `nbdist.rank.running.mirror.Mirror`."""

    def follow(self, run: Run) -> None:
        """Copy what has changed in the notebook."""


class Collectives(Protocol):
    """Lets a cell begin collectives or not; see `nbdist.backends.choice.Backend`."""

    def refuse(self) -> None:
        """Let none begin."""

    def admit(self) -> None:
        """Let them begin again."""


class CellRunner:
    """Runs cells one after the other in the engine's shell."""

    own = True
    """Whether the shell is the rank's own, not the notebook's."""

    def __init__(
        self, rank: int, shell: InteractiveShell, mirror: Place, names: dict[str, Any]
    ) -> None:
        self._rank = rank
        self._shell = shell
        self.mirror = mirror
        self._names = names
        """The names that are defined for every cell, also after `%reset`."""
        self._display = RichDisplay(shell, own=self.own)
        self._log = Log()
        self._send: Callable[[Display], None]
        self._collectives: Collectives | None = None
        self.lock = asyncio.Lock()
        """Held while the shell is in use: by our cells, `%px` cells, and while groups are
        formed."""
        self._task: asyncio.Task[ExecutionResult] | None = None
        self._filename = ""
        self._aligned = Aligned("", "")
        self._stop_early: set[str] = set()
        self._traceback: list[str] = []
        self._failed_at = 0.0
        self._showing = False
        """Whether a traceback is being formatted: then the cell has failed already."""
        self._error_kept = False
        """Whether IPython still holds the exception of an earlier cell, for `%tb`."""
        self.job = ""
        """The job whose cell is running; '' when idle."""
        self.interrupted = False
        """Whether KeyboardInterrupt was raised in the running cell. The main thread writes."""
        self._aborted = False
        self._freed_from: Waiting | None = None
        self._stopped_by: BaseException | None = None
        """The error by which the running cell was stopped, if it is one."""
        self._raising: BaseException | None = None
        """The exception that the next SIGINT raises; KeyboardInterrupt if None."""
        self.broken_in = ""
        """The files of the functions out of which the last cell's error came."""
        self._foreground = Foreground()
        self._pid = os.getpid()
        self.main = threading.main_thread().ident or 0
        if self.own:
            # IPython calls it twice, and ipykernel's version is a slow loop over all characters.
            name_of: Any = shell.compile.get_code_name
            vars(shell.compile)["get_code_name"] = functools.lru_cache(maxsize=1)(name_of)
            # IPython prints this warning whenever code calls `sys.exit`.
            warnings.filterwarnings("ignore", "To exit: use 'exit'", UserWarning)

    @property
    def showing(self) -> bool:
        """Whether the cell has failed and its traceback is being formatted. Any thread."""
        return self._showing

    def start(
        self, send: Callable[[Display], None], collectives: Collectives | None = None
    ) -> None:
        """Send the cells' displays with `send`; begin no collective in a cell that is stopped."""
        self._send, self._collectives = send, collectives

    @contextmanager
    def _sigint(self) -> Iterator[None]:
        # ipyparallel's engine ignores SIGINT; during a cell it raises KeyboardInterrupt.
        kept = signal.signal(signal.SIGINT, self._on_sigint)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, kept)

    def _on_sigint(self, _signum: int, frame: FrameType | None) -> None:
        """Raise in the user's code if it runs, cancel it if it awaits, else do nothing."""
        ignored = False
        while frame is not None:
            if frame.f_code.co_filename == self._filename:
                error, self._raising = self._raising, None
                if error is not None:
                    raise error
                self._refuse()
                self.interrupted = not ignored
                raise KeyboardInterrupt
            ignored |= frame.f_code.co_name == "__del__"  # Python prints what is raised there
            frame = frame.f_back
        if self._task is not None:
            self._refuse()
            self.interrupted = True
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def _refuse(self) -> None:
        """Let no collective begin: the cell may catch the interrupt, and another rank may wait."""
        if self._collectives is not None and os.getpid() == self._pid:
            self._collectives.refuse()

    def interrupt(self, job: str, *, again: bool = False) -> None:
        """Interrupt `job`, even if its cell has not begun yet. Any thread.

        A cell that has caught an interrupt gets another only if `again`.
        """
        if self.job != job:
            self._stop_early.add(job)
        elif not self._showing:
            self._aborted = True
            if self.interrupted and not again:
                return
            interrupt_thread(self.main)
            if self.own:  # the kernel's programs belong to the notebook, too
                self._foreground.interrupt()

    def abort(self, job: str, waiting: Waiting | None) -> None:
        """Record that the collective of `job`'s cell is about to be aborted. Any thread."""
        if self.job == job and not self._showing:
            self._aborted, self._freed_from = True, self._freed_from or waiting

    def fail(self, job: str, error: BaseException) -> None:
        """Raise an error in the cell of `job` as soon as it runs Python code again. Any thread."""
        if self.job == job and not self._aborted and not self._showing:
            self._raising = error
            signal.pthread_kill(self.main, signal.SIGINT)

    async def run(self, run: Run, formed: Callable[[], bool]) -> Done:
        """Run one cell to its end; return how it ended."""
        async with self.lock:
            self.job, self._aborted, self._traceback = run.job, False, []
            self.interrupted = False
            self._freed_from = self._raising = self._stopped_by = None
            self._failed_at, self.broken_in = 0.0, ""
            began = False
            try:
                self._begin(run)
                began = True
                with ExitStack() as stack:
                    result = await self._cell(run, stack)
                fault = self._fault(result)
                error, result.result = result.error_before_exec or result.error_in_exec, None
                error, self._stopped_by = error or self._stopped_by, None
            except (
                BaseException
            ) as err:  # the hub must know of any error that IPython did not handle
                fault, error = self._plain_fault(err), err
            finally:
                self.job = ""
                self._stop_early.discard(run.job)
                if self._collectives is not None:
                    self._collectives.admit()
            if os.getpid() != self._pid:
                # A child that the cell has forked: its copy of the cell has ended, and it is not a
                # rank.
                os._exit(0 if fault is None or fault.text in ("0", "None") else 1)
            if fault is not None or self._failed_at or self._error_kept:
                self._let_go(error)
            return Done(run.job, self._log.size() if began else -1, fault, formed())

    def _let_go(self, error: BaseException | None) -> None:
        """Release a failed cell's objects, and its exception once another cell has run."""
        kept.empty_frames(error)
        failed = error is not None or bool(self._failed_at)
        if self._error_kept and not failed:
            kept.forget_error(self._shell)
        self._error_kept = failed

    def forget_value(self) -> None:
        """Release the last cell's value. Main thread."""
        self._display.forget_value()

    def _begin(self, run: Run) -> None:
        if run.job in self._stop_early:
            raise KeyboardInterrupt
        self.mirror.follow(run)
        self._log.take(f"{run.logs}/rank{self._rank}.log")
        self.define_names()

    def define_names(self) -> None:
        """Define our names again, except those that the user has bound."""
        space = self._shell.user_ns
        exiter = self._shell.exiter  # IPython's `exit`, which `%reset` restores
        missing = {
            name: value for name, value in self._names.items() if space.get(name, exiter) is exiter
        }
        if missing:
            space.update(missing)
            self._shell.user_ns_hidden.update(missing)

    async def _cell(self, run: Run, stack: ExitStack) -> ExecutionResult:
        shell = self._shell
        self._display.begin(run.code)
        self._foreground.begin()

        def show(kind: str, content: dict[str, Any]) -> None:
            self._send(Display(run.job, self._log.size(), kind, content))

        stack.enter_context(self._display.to(show if run.shown == self._rank else as_text))
        stack.enter_context(self._questions())
        stack.enter_context(self._keep_traceback())
        stack.enter_context(self._sigint())
        count, shell.execution_count = shell.execution_count, run.execution_count
        self._aligned = align(run.code, run.filename_line)
        cell = code = self._aligned.code
        problem = None
        try:
            cell = transformed(shell, code)
        except Exception:  # IPython shows the transformer's error
            problem = sys.exc_info()
        self._filename = shell.compile.get_code_name(code, cell, run.execution_count)
        self._task = asyncio.current_task()
        try:
            return await shell.run_cell_async(
                code, store_history=self.own, transformed_cell=cell, preprocessing_exc_tuple=problem
            )
        finally:
            self._task = None
            if not self.own:  # the notebook keeps its own count
                shell.execution_count = count
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", shell.last_execution_result)

    def _questions(self) -> AbstractContextManager[None]:
        return no_questions()

    @contextmanager
    def _keep_traceback(self) -> Iterator[None]:
        make = self._shell.showtraceback

        def showtraceback(*args: Any, **kwargs: Any) -> None:  # IPython's
            error = sys.exc_info()[1]
            if _is_good_end(error):
                return
            if error is not None and self._by_stop(error):
                self._failed_at, self._stopped_by = time.time(), error
                kept.keep_error(error)
                return
            # Formatting takes a while. What happens meanwhile is not the cause of this fault.
            self._failed_at, self._showing = time.time(), True
            make_quick_to_show(error)
            try:
                make(*args, **kwargs)
            finally:
                self._showing = False

        def keep(_etype: type, _evalue: BaseException, stb: list[str]) -> None:
            self._traceback = list(stb)

        # Set on the instance, these override the class's methods, which would publish the
        # traceback, format it again for the history, and start a debugger (`%pdb on`).
        ours = {
            "showtraceback": showtraceback,
            "_showtraceback": keep,
            "_format_exception_for_storage": lambda *_: {},
            "debugger": lambda *_, **__: None if self._showing else refuse_breakpoint(),
        }
        vars(self._shell).update(ours)
        try:
            yield
        finally:
            for name in ours:
                del vars(self._shell)[name]

    def _fault(self, result: ExecutionResult) -> Fault | None:
        # IPython shows an error of a cell inside the cell (`%%capture`), and goes on.
        error = result.error_before_exec or result.error_in_exec or self._stopped_by
        if error is None or _is_good_end(error):
            if self._traceback:  # of a cell inside the cell, such as under `%%capture`
                sys.stdout.write("\n".join([*self._traceback, ""]))
            return None
        line = error.lineno if isinstance(error, SyntaxError) else None
        called: list[TracebackType] = []
        traces = list(traces_of(error))
        if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
            traces += traces_of(error.__context__)  # Lightning ends the process after an interrupt
        self.broken_in = "\n".join(trace.tb_frame.f_code.co_filename for trace in traces)
        for trace in traces:
            at = self._cell_line(trace.tb_frame, trace.tb_lineno)
            line, called = (at, []) if at else (line, [*called, trace])
        name = type(error).__name__
        if isinstance(error, asyncio.CancelledError) and self._aborted:
            name = "KeyboardInterrupt"
        return Fault(
            name=name,
            text=text_of(error),
            traceback=self._traceback,
            line=line,
            at=self._failed_at or time.time(),
            waited=self._freed_from,
            aborted=self._aborted,
            place=self._place(innermost(called)) if self._aborted and line else "",
        )

    def _by_stop(self, error: BaseException) -> bool:
        """Whether an error only tells that the cell was stopped: nobody needs its traceback."""
        if not self._aborted:
            return False
        ends = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError, Interrupted))
        return ends or self._freed_from is not None or bool(LOST_TEXT.search(text_of(error)))

    def _place(self, trace: TracebackType | None) -> str:
        """Return a function and its line, as a report shows them."""
        if trace is None:
            return ""
        code = trace.tb_frame.f_code
        cell = self._shell.compile.format_code_name(code.co_filename)
        where = f"{' '.join(cell)}, line " if cell else f"{Path(code.co_filename).name}:"
        return f"`{code.co_name}` ({where}{trace.tb_lineno})"

    def _plain_fault(self, err: BaseException) -> Fault:
        """Return the fault for an error outside IPython's own handling."""
        return Fault(
            name=type(err).__name__,
            text=text_of(err),
            traceback=traceback.format_exception(err) if self._failed_at else [],
            line=None,
            at=self._failed_at or time.time(),
            aborted=self._aborted or isinstance(err, KeyboardInterrupt),
        )

    @property
    def cell_file(self) -> str:
        """The running cell's file name in tracebacks. Any thread."""
        return self._filename

    def named(self, frame: traceback.FrameSummary) -> traceback.FrameSummary:
        """Return a frame with the name of its cell instead of the file name. Any thread."""
        cell = self._shell.compile.format_code_name(frame.filename)
        if cell is None:
            return frame
        return traceback.FrameSummary(
            " ".join(cell), frame.lineno, frame.name, lookup_line=False, line=frame.line
        )

    def line(self) -> int | None:
        """Return the cell's line that is running now, None outside the cell. Any thread."""
        return vitals.line(self.main, lambda frame: self._cell_line(frame, frame.f_lineno))

    def _cell_line(self, frame: FrameType, line: int) -> int | None:
        """Return a frame's line in the notebook's cell; None if it is not the cell's frame."""
        name = frame.f_code.co_filename
        if name == self._filename:
            return self._aligned.magic_line or line
        return line if name in TIMED else None


def _is_good_end(error: BaseException | None) -> bool:
    """Return whether an error is the normal end of a script: `sys.exit(main())`."""
    return isinstance(error, SystemExit) and error.code in (None, 0)
