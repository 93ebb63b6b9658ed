"""A cell on this rank: IPython's own `run_cell_async` on the main thread, watched and stoppable.

`CellRunner.run` is the only place that runs user code. The agent's thread reads `job`, `line()`
and calls `interrupt()`; all else belongs to the main thread.
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
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.rank.looking import vitals
from nbdist.rank.running.display import RichDisplay, as_text
from nbdist.rank.running.lines import Aligned, align
from nbdist.rank.running.plain_cells import transformed
from nbdist.rank.running.questions import no_questions, refuse_breakpoint
from nbdist.rank.running.rank_output import Log
from nbdist.rank.values import ipython_history as kept
from nbdist.rank.values.user_errors import make_quick_to_show, text_of
from nbdist.wire.messages import Display, Done, Fault, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from nbdist.wire.group_reports import Waiting
    from nbdist.wire.messages import Message


TIMED = ("<timed exec>", "<timed eval>")
"""What IPython calls the code under `%%time`."""


class Place(Protocol):
    """What a rank takes over from the notebook; see `nbdist.rank.running.mirror.Mirror`."""

    def follow(self, run: Run) -> None:
        """Take over what has changed."""


class CellRunner:
    """Runs cells one after the other in the engine's shell."""

    own = True
    """Whether the shell is the rank's own, and not the notebook's."""

    def __init__(
        self, rank: int, shell: InteractiveShell, mirror: Place, names: dict[str, Any]
    ) -> None:
        self._rank = rank
        self._shell = shell
        self.mirror = mirror
        self._names = names
        """What every cell finds defined, also after `%reset`."""
        self._display = RichDisplay(shell, own=self.own)
        self._log = Log()
        self._send: Callable[[Message], None]
        self.lock = asyncio.Lock()
        """Held by whoever uses the shell: our cells, `%px` cells, the forming of groups."""
        self._task: asyncio.Task[ExecutionResult] | None = None
        self._filename = ""
        self._aligned = Aligned("", "")
        self._stop_early: set[str] = set()
        self._traceback: list[str] = []
        self._failed_at = 0.0
        self._showing = False
        """Whether a traceback is being made: the cell has failed already."""
        self._error_kept = False
        """Whether IPython has the exception of an earlier cell, for `%tb`."""
        self.job = ""
        """The job whose cell is running, '' when idle."""
        self._aborted = False
        self._freed_from: Waiting | None = None
        self._raising: BaseException | None = None
        """What the next SIGINT raises, KeyboardInterrupt if None."""
        self._pid = os.getpid()
        self.main = threading.main_thread().ident or 0
        if self.own:
            # IPython asks for it once more, and ipykernel's is made of each character, in Python.
            name_of: Any = shell.compile.get_code_name
            vars(shell.compile)["get_code_name"] = functools.lru_cache(maxsize=1)(name_of)
            # IPython says how to leave IPython wherever code calls `sys.exit`
            warnings.filterwarnings("ignore", "To exit: use 'exit'", UserWarning)

    @property
    def showing(self) -> bool:
        """Whether the cell has failed and its traceback is being made. Any thread."""
        return self._showing

    def start(self, send: Callable[[Message], None]) -> None:
        """Send what cells show to `send`."""
        self._send = send

    @contextmanager
    def _sigint(self) -> Iterator[None]:
        # ipyparallel's engine ignores SIGINT; within a cell it is what raises KeyboardInterrupt.
        kept = signal.signal(signal.SIGINT, self._on_sigint)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, kept)

    def _on_sigint(self, _signum: int, frame: FrameType | None) -> None:
        """Raise in user code that is running, cancel user code that awaits, else do nothing."""
        while frame is not None:
            if frame.f_code.co_filename == self._filename:
                error, self._raising = self._raising or KeyboardInterrupt(), None
                raise error
            frame = frame.f_back
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def interrupt(self, job: str) -> None:
        """Interrupt `job`, also when its cell has not begun yet. Any thread."""
        if self.job != job:
            self._stop_early.add(job)
        elif not self._showing:
            self._aborted = True
            signal.pthread_kill(self.main, signal.SIGINT)

    def abort(self, job: str, waiting: Waiting | None) -> None:
        """Note that the cell of `job` is about to be freed from a collective. Any thread."""
        if self.job == job and not self._showing:
            self._aborted, self._freed_from = True, self._freed_from or waiting

    def fail(self, job: str, error: BaseException) -> None:
        """Raise an error in the cell of `job`, as soon as Python runs there again. Any thread."""
        if self.job == job and not self._aborted and not self._showing:
            self._raising = error
            signal.pthread_kill(self.main, signal.SIGINT)

    async def run(self, run: Run, formed: Callable[[], bool]) -> Done:
        """Run one cell to its end and say how it ended."""
        async with self.lock:
            self.job, self._aborted, self._traceback = run.job, False, []
            self._freed_from, self._raising, self._failed_at = None, None, 0.0
            began = False
            try:
                self._begin(run)
                began = True
                with ExitStack() as stack:
                    result = await self._cell(run, stack)
                fault = self._fault(result)
                error, result.result = result.error_before_exec or result.error_in_exec, None
            except BaseException as err:  # the hub must hear of it, whatever IPython let through
                fault, error = self._plain_fault(err), err
            finally:
                self.job = ""
                self._stop_early.discard(run.job)
            if os.getpid() != self._pid:
                # A child that the cell forked: its copy of the cell is over, and it is no rank.
                os._exit(0 if fault is None or fault.text in ("0", "None") else 1)
            if fault is not None or self._failed_at or self._error_kept:
                self._let_go(error)
            return Done(run.job, self._log.size() if began else -1, fault, formed())

    def _let_go(self, error: BaseException | None) -> None:
        """Let go of what a failed cell held, and of its exception once another cell has run."""
        kept.empty_frames(error)
        failed = error is not None or bool(self._failed_at)
        if self._error_kept and not failed:
            kept.forget_error(self._shell)
        self._error_kept = failed

    def forget_value(self) -> None:
        """Let go of the last cell's value. Main thread."""
        self._display.forget_value()

    def _begin(self, run: Run) -> None:
        if run.job in self._stop_early:
            raise KeyboardInterrupt
        self.mirror.follow(run)
        self._log.take(f"{run.logs}/rank{self._rank}.log")
        self.define_names()

    def define_names(self) -> None:
        """Define what the user should find defined and has not defined anew."""
        space = self._shell.user_ns
        exiter = self._shell.exiter  # IPython's `exit`, which is back after %reset
        missing = {
            name: value for name, value in self._names.items() if space.get(name, exiter) is exiter
        }
        if missing:
            space.update(missing)
            self._shell.user_ns_hidden.update(missing)

    async def _cell(self, run: Run, stack: ExitStack) -> ExecutionResult:
        shell = self._shell
        self._display.begin(run.code)

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
        except Exception:  # IPython shows whatever a transformer raised
            problem = sys.exc_info()
        self._filename = shell.compile.get_code_name(code, cell, run.execution_count)
        self._task = asyncio.current_task()
        try:
            return await shell.run_cell_async(
                code, store_history=self.own, transformed_cell=cell, preprocessing_exc_tuple=problem
            )
        finally:
            self._task = None
            if not self.own:  # the notebook counts its cells by itself
                shell.execution_count = count
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", shell.last_execution_result)

    def _questions(self) -> AbstractContextManager[None]:
        return no_questions()

    @contextmanager
    def _keep_traceback(self) -> Iterator[None]:
        make = self._shell.showtraceback

        def showtraceback(*args: Any, **kwargs: Any) -> None:  # IPython's
            if _is_good_end(sys.exc_info()[1]):
                return
            # Making it takes a while. The fault is not a consequence of what happens meanwhile.
            self._failed_at, self._showing = time.time(), True
            make_quick_to_show(sys.exc_info()[1])
            try:
                make(*args, **kwargs)
            finally:
                self._showing = False

        def keep(_etype: type, _evalue: BaseException, stb: list[str]) -> None:
            self._traceback = list(stb)

        # Set on the instance, these hide the class's own, which would publish the traceback, make
        # it once more for the history, and wait for a debugger's commands (`%pdb on`).
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
        error = result.error_before_exec or result.error_in_exec
        if error is None or _is_good_end(error):
            if self._traceback:  # of a cell within the cell, such as that of `%%capture`
                sys.stdout.write("\n".join([*self._traceback, ""]))
            return None
        line = error.lineno if isinstance(error, SyntaxError) else None
        trace = error.__traceback__
        while trace is not None:
            line = self._cell_line(trace.tb_frame, trace.tb_lineno) or line
            trace = trace.tb_next
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
        )

    def _plain_fault(self, err: BaseException) -> Fault:
        """Return a fault that IPython has not seen, or not survived."""
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
        """The file name tracebacks have for the running cell. Any thread."""
        return self._filename

    def named(self, frame: traceback.FrameSummary) -> traceback.FrameSummary:
        """Return a frame with its cell's name in the place of a file's. Any thread."""
        cell = self._shell.compile.format_code_name(frame.filename)
        if cell is None:
            return frame
        return traceback.FrameSummary(
            " ".join(cell), frame.lineno, frame.name, lookup_line=False, line=frame.line
        )

    def line(self) -> int | None:
        """Return the cell's line being run now, None outside it. Any thread."""
        return vitals.line(self.main, lambda frame: self._cell_line(frame, frame.f_lineno))

    def _cell_line(self, frame: FrameType, line: int) -> int | None:
        """Return the notebook's line of a frame's line, None if the frame is not of the cell."""
        name = frame.f_code.co_filename
        if name == self._filename:
            return self._aligned.magic_line or line
        return line if name in TIMED else None


def _is_good_end(error: BaseException | None) -> bool:
    """Return whether it is how a script ends that has done its work: `sys.exit(main())`."""
    return isinstance(error, SystemExit) and error.code in (None, 0)
