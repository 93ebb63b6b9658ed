"""All messages between hub and agents, but for calls: small frozen structs.

A message is decoded against these types before anything looks at it; what does not fit is counted
and dropped. ``PROTOCOL`` goes up when a field changes meaning; hub and agents must agree on it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nbdist.wire.activity import Bar, Pace, Vitals
from nbdist.wire.group_reports import Waiting

PROTOCOL = 2
"""Version of the messages below, said in `Hello`."""


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all messages: the struct's name travels as its tag."""


# -- hub to agent ------------------------------------------------------------------------------


class Run(Message, frozen=True):
    """Run a cell on the main thread; the same for all ranks, so that it is encoded once."""

    job: str
    code: str
    filename_line: int
    """How many lines of the notebook's cell stand before `code` (the magic's own line)."""
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
    """What the cell's program finds in `sys.argv` behind its name."""
    autoreload: str = ""
    """Mode of IPython's autoreload in the notebook, '' where it is off."""
    parcel: str = ""
    """Names received before (see `Names.receive`) that are bound now, '' for none."""
    began: float = 0.0
    """When the job began, `time.time()` of the hub; 0 where it measures nothing."""


class Interrupt(Message, frozen=True):
    """Raise KeyboardInterrupt in the cell."""

    job: str


class Abort(Message, frozen=True):
    """Free this rank from whatever collective it waits in."""

    job: str
    why: str


class Received(Message, frozen=True):
    """The hub has a display, so that the rank may print what follows it."""


class Quit(Message, frozen=True):
    """Leave: end the process after its exit handlers."""


# -- agent to hub ------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of a rank: who it is."""

    rank: int
    incarnation: int
    pid: int
    host: str
    device: str = ""
    protocol: int = PROTOCOL
    size: int = 0
    """How many ranks there are, where they come and go; 0 if the hub has asked for them."""
    place: str = ""
    """Where its pid counts, see `process_lives`; '' if that is where the hub has started it."""


class Fault(Message, frozen=True):
    """How a cell ended on a rank that did not finish it."""

    name: str
    """The exception's class."""
    text: str
    traceback: list[str]
    line: int | None
    """The cell's own line, None where the traceback does not touch the cell."""
    at: float
    """When it was raised, `time.time()`."""
    waited: Waiting | None = None
    """The collective this rank was freed from, if it was."""
    aborted: bool = False
    """Whether the rank had been told to stop before it raised."""


class Done(Message, frozen=True):
    """A cell has ended on this rank; its output goes up to `log_end`, -1 if there is none."""

    job: str
    log_end: int
    fault: Fault | None = None
    formed: bool = True
    """Whether the process group is still the one the hub formed."""
    logged: bool = True
    """Whether it may have logged metrics."""


class Display(Message, frozen=True):
    """A rich display of a shown rank, at the place of the log where it belongs."""

    job: str
    offset: int
    kind: str
    """`display_data`, `update_display_data`, `execute_result` or `clear_output`."""
    content: dict[str, Any]


class Pulse(Message, frozen=True):
    """What a busy rank is doing, about twice a second, and once more before `Done`.

    Of an idle one, whose `job` is '', it tells what it holds of its GPU when that has changed.
    """

    job: str
    line: int | None
    where: str
    """Innermost frame in words."""
    waiting: Waiting | None
    vitals: Vitals
    bars: list[Bar] = []
    """The loops it is in, from the outermost inwards; at its end the last ones."""
    device: str = ""
    paces: list[Pace] = []
    """At its end: what its loops took, place by place."""
    showing: bool = False
    """Whether its cell has failed and the traceback is being made."""


class Reply(Message, frozen=True):
    """Answer to an `Ask`; see `nbdist.wire.rank_calls`."""

    id: int
    value: Any = None
    error: str = ""
    """Why there is no value, '' if there is."""
