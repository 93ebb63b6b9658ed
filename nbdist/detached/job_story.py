"""The story of a detached job (reports, bars, end): its keeper writes it, views read it.

The story is a file of JSON lines that only grows. What a rich display shows lies in a file of its
own, so that one that is updated for days takes no more room than one that is not.
"""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.detached import job_folders
from nbdist.job.bounded_output import DISPLAYS
from nbdist.job.deaths import Death
from nbdist.job.events import Notice
from nbdist.job.report import ErrorWords
from nbdist.job.states import JobState
from nbdist.machine.operating_system import private
from nbdist.wire.messages import Display, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nbdist.job.job import Job

STORY = "story.jsonl"
REDRAW_SECONDS = 0.25
"""The least time between two updates of a display."""


class Record(msgspec.Struct, frozen=True, tag=True):
    """Base class of all records."""


class Told(Record, frozen=True):
    """A notice of ours; see `nbdist.job.events.Notice`."""

    key: str
    text: str
    warns: bool = False


class Drawn(Record, frozen=True):
    """A rich display in the file `display_file`; a second record means that it has changed."""

    number: int
    offset: int
    kind: str


class Quiet(Record, frozen=True):
    """From here on torch's messages about cut connections are left out."""


class End(Record, frozen=True):
    """The end of the job."""

    state: JobState
    seconds: float | None
    began: float | None
    parts: dict[int, tuple[int, int | None]]
    errors: dict[int, Fault | Death]
    notes: list[str]
    restarts: list[str]
    error: ErrorWords | None
    """What `Job.wait` raises."""
    returned: list[int]
    """The ranks that have returned values."""


_decode = msgspec.json.Decoder(Told | Drawn | Quiet | End).decode


def display_file(folder: Path, number: int) -> Path:
    """Return the path of a display's content."""
    return folder / f"display{number}.json"


class Writer:
    """Receives a job's output instead of a viewer, and writes what the logs do not contain.

    Keeper's thread only.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._folder = job, job.folder
        self._file = open(job.folder / STORY, "ab", opener=private)  # noqa: SIM115  # see `end`
        self._numbers: dict[str, int] = {}
        """The numbers of displays that may be updated, by id."""
        self._count = self._room = 0
        self._changed: dict[int, Display] = {}
        self._redrawn_at = 0.0

    def begin(self) -> None:
        """See `nbdist.hub.running.watch.Output`."""
        self.look()

    def _write(self, record: Record) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()

    def quiet(self) -> None:
        """See `nbdist.hub.running.watch.Output`."""
        self._write(Quiet())

    def logs(self) -> list[Path]:
        """See `nbdist.hub.running.watch.Output`; it reads none."""
        return []

    def look(self) -> bool:
        """Write new records."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._job.events.get_nowait()
                if isinstance(event, Notice):
                    self._write(Told(event.key, event.text, event.warns))
        if self._changed and time.monotonic() - self._redrawn_at > REDRAW_SECONDS:
            self._redraw()
        return bool(self._changed)

    def finish(self) -> bool:
        """Write the rest."""
        self.look()
        self._redraw()
        return True

    def display(self, display: Display) -> None:
        """Write a rich display, up to the number that views show."""
        name = display.content.get("transient", {}).get("display_id", "")
        if display.kind == "clear_output":
            self._clear()
        elif display.kind == "update_display_data":
            if name in self._numbers:
                self._changed[self._numbers[name]] = display
            return
        self._room += 1
        # Room for a `clear_output`, and for one more display, which is reported.
        if self._room > DISPLAYS + 2:
            return
        self._count += 1
        self._draw(self._count, display)
        if name:
            self._numbers[name] = self._count

    def _clear(self) -> None:
        """Remove displays that were cleared."""
        self._redraw()
        for number in range(self._count - self._room + 1, self._count + 1):
            display_file(self._folder, number).unlink(missing_ok=True)
        self._numbers.clear()
        self._room = 0

    def _draw(self, number: int, display: Display) -> None:
        job_folders.write(self._folder, display_file(self._folder, number).name, display.content)
        self._write(Drawn(number, display.offset, display.kind))

    def _redraw(self) -> None:
        for number, display in self._changed.items():
            self._draw(number, display)
        self._changed.clear()
        self._redrawn_at = time.monotonic()

    def end(self, record: End) -> None:
        """Write the end of the job."""
        self.look()
        self._write(record)
        self._file.close()


class Reader:
    """Reads a story as it grows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at = 0

    def new(self) -> Iterator[Told | Display | Quiet | End]:
        """Return the new records since the last call.

        A display that was updated meanwhile is returned once, at its first place, in its last
        state.
        """
        records = list(self._records())
        shown = set()
        for record in records:
            if not isinstance(record, Drawn):
                yield record
            elif record.number not in shown and (content := self._content(record)) is not None:
                shown.add(record.number)
                yield Display("", record.offset, record.kind, content)

    def _records(self) -> Iterator[Told | Drawn | Quiet | End]:
        try:
            with (self._folder / STORY).open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._at += whole
        yield from map(_decode, data[:whole].splitlines())

    def _content(self, record: Drawn) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            data = display_file(self._folder, record.number).read_bytes()
            return msgspec.json.decode(data, type=dict[str, Any])
        return None
