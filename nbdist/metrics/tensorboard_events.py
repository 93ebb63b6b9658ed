"""Writes a job's metrics as TensorBoard's event files, in the process `tensorboard_process`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from nbdist.metrics.points_file import Column, whole_frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSION = "brain.Event:2"


class Events:
    """Writes what the ranks of a job have logged into event files, one run for each rank.

    Parameters
    ----------
    folder, job
        They name the files to read; ranks may come later.
    target
        The folder for the runs.
    """

    def __init__(self, folder: Path, job: str, target: Path) -> None:
        self._folder, self._job, self._target = folder, job, target
        self._runs: dict[str, _Run] = {}

    def read(self, enough: Callable[[], bool]) -> None:
        """Write what was logged since the last call; stop early when `enough` returns True."""
        for path in sorted(self._folder.glob(f"metrics{self._job}.*")):
            if path.name not in self._runs:
                self._runs[path.name] = _Run(path, self._target / f"rank{path.suffix[1:]}")
            self._runs[path.name].read(enough)


class _Run:
    """The run of one rank."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._read_to, self._start = source, 0, 0
        target.mkdir()
        self._target = target / "events.out.tfevents.0.nbdist"
        with self._target.open("wb") as file:
            _write(file, Event(file_version=VERSION))

    def read(self, enough: Callable[[], bool]) -> None:
        with self._source.open("rb") as source:
            source.seek(self._read_to)
            data = source.read()
        if data:
            with self._target.open("ab") as file:
                self._copy(data, file, enough)

    def _copy(self, data: bytes, file: BinaryIO, enough: Callable[[], bool]) -> None:
        begin = self._read_to
        for end, frame in whole_frames(data):
            if enough():
                break
            if frame.start > self._start:
                self._start = frame.start
                _begin_anew(file, frame.columns)
            for column in frame.columns:
                _add(file, column)
            self._read_to = begin + end


def _begin_anew(file: BinaryIO, columns: list[Column]) -> None:
    """Make TensorBoard drop later values from before the job's restart."""
    first = min(min(array("q", column.steps)) for column in columns)
    _write(file, Event(step=first, session_log=SessionLog(status=SessionLog.START)))


def _add(file: BinaryIO, column: Column) -> None:
    arrays = array("q", column.steps), array("d", column.times), array("d", column.values)
    for step, at, number in zip(*arrays, strict=True):
        value = Summary.Value(tag=column.name, simple_value=number)
        _write(file, Event(wall_time=at, step=step, summary=Summary(value=[value])))


def _write(file: BinaryIO, event: Event) -> None:
    RecordWriter(file).write(event.SerializeToString())
