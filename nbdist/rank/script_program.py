"""What a rank of a script must know, and where the cell stands in it."""

from __future__ import annotations

import ast
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nbdist.rank.looking import vitals
from nbdist.rank.running.script_display import last_shown
from nbdist.wire.channel import Keys

if TYPE_CHECKING:
    from types import CodeType, TracebackType


WORKER = re.compile(
    r"^-- Process (?P<number>\d+) terminated with the following error:\n(?P<traceback>.*)",
    re.MULTILINE | re.DOTALL,
)
"""How `torch.multiprocessing` tells of a process that it has started."""
PLACE = re.compile(r'(?P<indent>\s+)File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<rest>.*)')


class Worker(NamedTuple):
    """How a process that the script has started itself failed."""

    told: str
    traceback: list[str]
    line: int | None
    """The innermost line of the cell."""


class Program(msgspec.Struct, frozen=True):
    """Read by every rank from a private file in the job's folder, gone when the job has ended."""

    job: str
    url: str
    """Where the hub listens."""
    keys: Keys
    path: str
    """The script."""
    cell_line: int
    """The script's line at which the cell's first line stands."""
    cell_lines: int
    """How many lines the cell has."""
    lines: int
    """How many lines of the notebook's cell stand before those."""
    shows_last: bool
    """Whether the cell ends with an expression whose value a notebook shows."""
    label: str
    """What tracebacks call the cell: ``Cell In[5]``."""
    launcher: str
    """Which launcher starts it."""
    shown: int
    """The rank whose rich display is shown."""
    returning: list[int]
    """Ranks whose names are returned."""
    returns: list[str]
    arguments: list[str]
    """What it finds in `sys.argv` behind its name."""
    cwd: str
    sys_path: list[str]
    temp: str
    """Where multiprocessing may keep its sockets; removed when the job has ended."""
    loopback: bool
    """Whether all ranks are on this machine, so that nobody else may reach their sockets."""
    began: float
    """When the job began, `time.time()` of the hub."""

    @property
    def folder(self) -> Path:
        """The job's folder, where its logs lie."""
        return Path(self.path).parent

    def compiled(self) -> CodeType:
        """Return the script as code whose file name is the script's path."""
        tree = ast.parse(Path(self.path).read_bytes(), self.path)
        if self.shows_last:
            tree = last_shown(tree, self.cell_line, self.cell_lines)
        return compile(tree, self.path, "exec", dont_inherit=True)

    def line_of(self, filename: str, line: int | None) -> int | None:
        """Return the notebook's line of a place in the script, None outside the cell."""
        if filename != self.path or line is None:
            return None
        inside = line - self.cell_line
        return inside + self.lines + 1 if 0 <= inside < self.cell_lines else None

    def cell_line_of(self, trace: TracebackType | None) -> int | None:
        """Return the innermost line of the cell in a traceback."""
        found = None
        while trace is not None:
            line = self.line_of(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            found, trace = line or found, trace.tb_next
        return found

    def traceback_of(self, error: BaseException) -> list[str]:
        """Return a traceback from the script on, with the cell's own lines."""
        told = traceback.TracebackException.from_exception(error)
        self._rewrite(told, set())
        return "".join(told.format()).splitlines()

    def _rewrite(self, told: traceback.TracebackException, seen: set[int]) -> None:
        if id(told) in seen:
            return
        seen.add(id(told))
        stack = list(told.stack)
        first = next((i for i, frame in enumerate(stack) if frame.filename == self.path), 0)
        told.stack[:] = [self.named(frame) for frame in stack[first:]]
        for other in (told.__cause__, told.__context__):
            if other is not None:
                self._rewrite(other, seen)

    def worker_in(self, text: str) -> Worker | None:
        """Return how a process that the script has made failed, if an error's text tells it."""
        found = WORKER.search(text)
        if found is None:
            return None
        lines, line = [], None
        for each in found["traceback"].strip().splitlines():
            place = PLACE.match(each)
            number = self.line_of(place["file"], int(place["line"])) if place else None
            line = number or line
            lines.append(
                f'{place["indent"]}File "{self.label}", line {number}{place["rest"]}'
                if place and number
                else each
            )
        last = next(each for each in reversed(lines) if each and not each.startswith(" "))
        return Worker(f"process {found['number']}: {last}", lines, line)

    def named(self, frame: traceback.FrameSummary) -> traceback.FrameSummary:
        """Return a frame with the cell's name and line in the place of the script's."""
        line = self.line_of(frame.filename, frame.lineno)
        if line is None:
            return frame
        return traceback.FrameSummary(
            self.label, line, frame.name, lookup_line=False, line=frame.line
        )

    def line_now(self, thread: int) -> int | None:
        """Return the cell's line a thread is at, None outside the cell. Any thread."""
        return vitals.line(
            thread, lambda frame: self.line_of(frame.f_code.co_filename, frame.f_lineno)
        )


# Made here, before there are threads: msgspec (0.22) crashes where two threads are the first to
# decode a type. So is each decoder in nbdist of what several threads may read.
decode_program = msgspec.json.Decoder(Program).decode
