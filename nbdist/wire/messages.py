"""All messages between hub and agents, but for calls: small frozen structs.

A message is decoded against these types before it is handled; a message that does not fit is
counted and dropped. ``PROTOCOL`` goes up when a field changes meaning; it must be the same on both
sides.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nbdist.wire.activity import Bar, Pace, Vitals
from nbdist.wire.group_reports import Waiting

PROTOCOL = 2
"""Version of the messages below, sent in `Hello`."""


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all messages: the struct's name is sent as its tag."""


# -- hub to agent ------------------------------------------------------------------------------


class Run(Message, frozen=True):
    """Run a cell on the main thread; equal for all ranks, so that it is encoded once."""

    job: str
    code: str
    filename_line: int
    """How many lines of the notebook's cell come before `code` (the magic's own line)."""
    execution_count: int
    logs: str
    """Folder of the ranks' logs, one file each."""
    shown: int
    """The rank whose rich display and last value are shown in the notebook."""
    cwd: str
    sys_path: list[str]
    environ: dict[str, str | None]
    """Changed environment variables; None removes one."""
    arguments: list[str] = []
    """The cell's arguments: `sys.argv` without the first item."""
    autoreload: str = ""
    """Mode of IPython's autoreload in the notebook, '' if it is off."""
    futures: int = 0
    """The compiler's flags of what the notebook has imported from `__future__`."""
    parcel: str = ""
    """The id of a received parcel (`Names.receive`) to bind before the cell runs, '' for none."""
    began: float = 0.0
    """When the job began, `time.time()` of the hub; 0 if the job measures no resources."""


class Interrupt(Message, frozen=True):
    """Raise KeyboardInterrupt in the cell, once for each press of stop."""

    job: str
    again: bool = False
    """Whether the user has pressed again: also if the cell has caught the one before."""


class Abort(Message, frozen=True):
    """Free this rank from the collective in which it waits."""

    job: str
    why: str


class Received(Message, frozen=True):
    """The hub has received a display, so that the rank may go on printing."""


class Quit(Message, frozen=True):
    """End the process, after its exit handlers."""


# -- agent to hub ------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of a rank, which identifies it."""

    rank: int
    incarnation: int
    pid: int
    host: str
    device: str = ""
    protocol: int = PROTOCOL
    size: int = 0
    """How many ranks there are, if a launcher changes this; 0 if the hub has fixed their number."""
    place: str = ""
    """The place of its pid, see `process_lives`; '' if the hub started it and knows the place."""


class Fault(Message, frozen=True):
    """How a cell ended on a rank that did not finish it."""

    name: str
    """The exception's class."""
    text: str
    traceback: list[str]
    line: int | None
    """The line in the cell, None if the traceback has none."""
    at: float
    """When it was raised, `time.time()`."""
    waited: Waiting | None = None
    """The collective this rank was freed from, if it was."""
    aborted: bool = False
    """Whether the rank had been asked to stop before it raised."""
    place: str = ""
    """The function and line in what the cell's line has called, as a report shows it."""


class Done(Message, frozen=True):
    """A cell has ended on this rank; its output ends at `log_end` in the log, -1 without a log."""

    job: str
    log_end: int
    fault: Fault | None = None
    formed: bool = True
    """Whether the process group is still the one the hub formed."""
    logged: bool = True
    """Whether the rank may have logged metrics."""


class Display(Message, frozen=True):
    """A rich display of the shown rank, with its position in the log."""

    job: str
    offset: int
    kind: str
    """`display_data`, `update_display_data`, `execute_result` or `clear_output`."""
    content: dict[str, Any]


class Pulse(Message, frozen=True):
    """What a busy rank is doing, about twice a second, and once more before `Done`.

    An idle rank sends one, with '' as `job`, when its GPU memory has changed.
    """

    job: str
    line: int | None
    where: str
    """The innermost frame, described."""
    waiting: Waiting | None
    vitals: Vitals
    bars: list[Bar] = []
    """The loops that are running, the outermost first; at the cell's end the last loops."""
    device: str = ""
    paces: list[Pace] = []
    """At the cell's end: the time of its loops, for each place in the code."""
    showing: bool = False
    """Whether the cell has failed and its traceback is being made."""
    interrupted: bool = False
    """Whether KeyboardInterrupt was raised in the cell, which may have caught it."""


class Reply(Message, frozen=True):
    """Answer to an `Ask`; see `nbdist.wire.rank_calls`."""

    id: int
    value: Any = None
    error: str = ""
    """Why there is no value, '' if there is one."""
