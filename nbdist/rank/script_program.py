"""`Program`: the file that a script's ranks read; maps the script's lines to the cell's."""

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
"""The message of `torch.multiprocessing` about a failed process."""
PLACE = re.compile(r'(?P<indent>\s+)File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<rest>.*)')


class Worker(NamedTuple):
    """The failure of a process that the script has started."""

    told: str
    traceback: list[str]
    line: int | None
    """The innermost line of the cell."""


class Program(msgspec.Struct, frozen=True):
    """The description of a script's job, in a private file that is removed after the job."""

    job: str
    url: str
    """The address where the hub listens."""
    keys: Keys
    path: str
    """The script."""
    cell_line: int
    """The line of the script with the cell's first line."""
    cell_lines: int
    """The number of lines of the cell."""
    lines: int
    """The number of lines above them in the notebook's cell."""
    shows_last: bool
    """Whether the cell ends with an expression whose value a notebook displays."""
    label: str
    """The cell's name in tracebacks: ``Cell In[5]``."""
    launcher: str
    """The launcher's name."""
    shown: int
    """The rank whose rich display the notebook shows."""
    returning: list[int]
    """The ranks that return values of names to the notebook."""
    returns: list[str]
    arguments: list[str]
    """The script's arguments, `sys.argv[1:]`."""
    cwd: str
    sys_path: list[str]
    temp: str
    """The folder for multiprocessing's sockets; removed after the job."""
    loopback: bool
    """Whether all ranks are on this machine, so that their sockets listen on loopback only."""
    began: float
    """When the job began, `time.time()` of the hub."""

    @property
    def folder(self) -> Path:
        """The job's folder, which contains its logs."""
        return Path(self.path).parent

    def compiled(self) -> CodeType:
        """Compile the script, with its path as the file name."""
        tree = ast.parse(Path(self.path).read_bytes(), self.path)
        if self.shows_last:
            tree = last_shown(tree, self.cell_line, self.cell_lines)
        return compile(tree, self.path, "exec", dont_inherit=True)

    def line_of(self, filename: str, line: int | None) -> int | None:
        """Return the cell's line for a line in the script, None outside the cell."""
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
        """Return an error's traceback, from the script's frame on, with the cell's line numbers."""
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
        """Return the failure of a process that the script has started, if the text contains it."""
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
        """Return a frame with the cell's name and line instead of the script's."""
        line = self.line_of(frame.filename, frame.lineno)
        if line is None:
            return frame
        return traceback.FrameSummary(
            self.label, line, frame.name, lookup_line=False, line=frame.line
        )

    def line_now(self, thread: int) -> int | None:
        """Return the cell's line that a thread runs, None outside the cell. Any thread."""
        return vitals.line(
            thread, lambda frame: self.line_of(frame.f_code.co_filename, frame.f_lineno)
        )


# Created at import, before there are threads: msgspec (0.22) crashes if two threads decode a type
# for the first time at once. So is every decoder in nbdist that several threads use.
decode_program = msgspec.json.Decoder(Program).decode
