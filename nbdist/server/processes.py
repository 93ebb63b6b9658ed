"""Reads the files of state of this user's processes as they change.

The server's loop calls this; a look costs a `stat` for each file that has not changed.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from nbdist.errors import UsageError
from nbdist.machine.process_lives import is_still, runs
from nbdist.published import state_file as records
from nbdist.published.state_file import ClusterRecord, JobRecord, RankRecord, Record, Unreadable
from nbdist.view.recorded_view import LOST, RUNNING, Known, Stands

ALIVE_SECONDS = 1.0
"""How often to check whether a process is alive."""
HIDDEN = {"control", "place"}, {"root", "folder"}, {"folder", "parts"}
"""Fields of processes, clusters and jobs that the page does not get."""
MEGABYTE = 1_000_000
"""An idle rank's memory is rounded to this unit, so that small changes are not sent."""


class Memory:
    """The memory of a process's idle ranks, measured by this server: only busy ranks report it."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        """Bytes, by pid."""
        self._looked_at = 0.0

    def look(self, record: Record) -> bool:
        """Measure if it is time to; return whether something has changed."""
        if time.monotonic() - self._looked_at < ALIVE_SECONDS:
            return False
        self._looked_at = time.monotonic()
        before, self.held = self.held, _memory(record)
        return before != self.held


class Entry:
    """One file of state.

    Parameters
    ----------
    path
        The file.
    key
        Identifies this version of the file: time, size and inode.
    before
        The entry of the version before it.
    """

    def __init__(
        self, path: Path, key: tuple[float, int, int], before: Entry | None = None
    ) -> None:
        self.path, self.key = path, key
        self.record: Record | None = None
        self.unreadable: Unreadable | None = None
        self.alive = True
        self.left: int | None = None
        """How many ranks of an ended process still run; None while it is alive or if unknown."""
        self.memory: Memory = Memory() if before is None else before.memory
        self._looked_at = 0.0
        try:
            self.record = records.read(path)
        except records.BROKEN as err:
            self.unreadable = Unreadable(path.stem, str(err))
        self.shown = None if self.record is None else _shown(self.record)
        self._fill_in()
        self.look()

    def look(self, *, now: bool = False) -> bool:
        """Check the process if it is time to; return whether something has changed.

        Parameters
        ----------
        now
            Whether to check even if the last check was just now.
        """
        if self.record is None:
            return False
        changed = self.alive and self.memory.look(self.record)
        if changed:
            self._fill_in()
        if not now and time.monotonic() - self._looked_at < ALIVE_SECONDS:
            return changed
        self._looked_at = time.monotonic()
        before = self.alive, self.left
        self.alive = self.record.alive(self.path)
        self.left = None if self.alive else _left(self.record)
        return changed or before != (self.alive, self.left)

    def _fill_in(self) -> None:
        """Add the memory of idle ranks to what the page is shown."""
        if not self.memory.held or self.shown is None:
            return
        for cluster in self.shown["clusters"]:
            for rank in cluster.get("ranks", []):
                if rank["state"] == "idle" and (held := self.memory.held.get(rank.get("pid", 0))):
                    rank["memory"] = held


class Processes:
    """All files of state, as of the last `look`."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self.changes = 0
        """How often something has changed."""

    def look(self) -> int:
        """Read what has changed; return `changes`."""
        before, found = self._entries, dict[str, Entry]()
        changed = False
        for path in _paths():
            with contextlib.suppress(OSError):  # the process has just ended
                status = path.stat(follow_symlinks=False)
                key = status.st_mtime, status.st_size, status.st_ino
                entry = before.get(path.stem)
                if entry is None or entry.key != key:
                    beat = entry is not None and entry.key[1:] == key[1:]
                    entry = Entry(path, key, entry)
                    changed |= not beat or entry.shown != before[path.stem].shown
                changed |= entry.look()
                found[path.stem] = entry
        self._entries = found
        changed |= before.keys() != self._entries.keys()
        changed |= self._drop_outdated()
        self.changes += changed
        return self.changes

    def _drop_outdated(self) -> bool:
        """Remove outdated files of state; return whether there were any."""
        kernels = {e.record.kernel for e in self._entries.values() if e.record and e.alive}
        outdated = [entry for entry in self._entries.values() if _outdated(entry, kernels)]
        for entry in outdated:
            self.forget(entry)
        return bool(outdated)

    def forget(self, entry: Entry) -> None:
        """Remove the file of state of an ended process."""
        self._entries.pop(entry.path.stem, None)
        self.changes += 1
        with contextlib.suppress(OSError):
            records.remove_left(entry.path, entry.record)

    def state(self) -> dict[str, Any]:
        """Return the state that the page shows."""
        entries = self._entries.values()
        return {
            "processes": [
                e.shown | {"alive": e.alive} | ({} if e.left is None else {"left": e.left})
                for e in entries
                if e.shown is not None
            ],
            "unreadable": [
                {"id": e.unreadable.id, "why": e.unreadable.why} for e in entries if e.unreadable
            ],
            "time": time.time(),
        }

    def look_again(self, entry: Entry) -> None:
        """Check a process at once, because a command has changed it."""
        entry.look(now=True)
        self.changes += 1

    def find(self, id_: str) -> Entry:
        """Look for changes; return the entry of a process that the page names.

        Raises
        ------
        UsageError
            If the process has ended.
        """
        self.look()
        self.record(id_)
        return self._entries[id_]

    def record(self, id_: str) -> Record:
        """Return the file of state, as of the last look, of a process that the page names.

        Raises
        ------
        UsageError
            If the process has ended.
        """
        entry = self._entries.get(id_)
        if entry is None or entry.record is None:
            raise UsageError("this process has ended")
        return entry.record

    def job(self, folder: str, id_: str) -> Known | None:
        """Return what is known of the job in a folder of this name, None if it is unknown.

        If several processes name the job, a process that knows its end comes first, then one that
        runs.
        """
        found = [
            _known(entry, entry.record, job)
            for entry in self._entries.values()
            if entry.record is not None
            for job in entry.record.jobs
            if job.id == id_ and Path(job.folder).name == folder
        ]
        return max(found, key=lambda known: (known.ended, known.stands == RUNNING), default=None)

    def runs(self, id_: str) -> bool:
        """Whether a process runs, as of the last look."""
        return id_ in self._entries and self._entries[id_].alive

    def gone(self) -> list[Entry]:
        """Return the entries of ended processes: crashed kernels, and keepers whose job is over.

        Entries with ranks that still run are left out: the page shows them so that they can be
        stopped.
        """
        self.look()
        return [entry for entry in self._entries.values() if not entry.alive and not entry.left]


def _known(entry: Entry, record: Record, job: JobRecord) -> Known:
    stands: Stands = RUNNING if entry.alive else LOST
    left = entry.left
    if left is not None:  # ranks of this job's cluster only
        mine = [each for each in record.clusters if each.id == job.cluster]
        left = sum(len(running(each)) for each in mine) if mine else None
    return Known(job, entry.path.stem, record.kind, record.pid, stands, left, entry.key[0])


def running(cluster: ClusterRecord) -> list[RankRecord]:
    """Return the ranks of a cluster whose processes run, looked up by pid and start time."""
    return [rank for rank in cluster.ranks if _runs(rank, cluster)]


def _runs(rank: RankRecord, cluster: ClusterRecord) -> bool:
    if rank.created:
        return runs(rank.pid, rank.created)
    return runs(*cluster.root)  # a rank without a start time ends with the root


def _left(record: Record) -> int | None:
    """Return how many ranks of an ended process still run, None if unknown."""
    if not record.place.seen_from_here:
        return None  # cannot be seen from here, and silent for long: probably all ended
    return sum(len(running(cluster)) for cluster in record.clusters)


def _memory(record: Record) -> dict[int, int]:
    """Return the memory of idle ranks in bytes, by pid."""
    if not record.place.seen_from_here:
        return {}
    ranks = [each for cluster in record.clusters for each in cluster.ranks if each.state == "idle"]
    return {rank.pid: held for rank in ranks if rank.created and (held := _resident(rank))}


def _resident(rank: RankRecord) -> int:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(rank.pid)
        if is_still(rank.pid, rank.created):
            return round(process.memory_info().rss / MEGABYTE) * MEGABYTE
    return 0


def _paths() -> list[Path]:
    folder = records.folder()
    try:
        if folder.stat().st_uid != os.getuid():
            return []  # another user's folder: its files cannot be trusted
        return sorted(folder.glob("*.json"))
    except OSError:
        return []


def _outdated(entry: Entry, kernels: set[str]) -> bool:
    """Whether a process has ended and the page need not show it any more."""
    if entry.record is None or entry.alive or entry.left:
        return False  # shown while ranks run, so that they can be stopped
    restarted = entry.record.kernel != "" and entry.record.kernel in kernels
    return restarted or records.outdated(entry.record, entry.path)


def _shown(record: Record) -> dict[str, Any]:
    told = msgspec.to_builtins(record, str_keys=True)
    clusters, jobs = told.get("clusters", []), told.get("jobs", [])
    for job in jobs:
        job["logs"] = Path(job.get("folder", "")).name  # the page names a job by this and its id
    for cluster in clusters:
        for rank in cluster.get("ranks", []):
            rank.pop("created", None)
    for hidden, parts in zip(HIDDEN, ([told], clusters, jobs), strict=True):
        for part in parts:
            for name in hidden:
                part.pop(name, None)
    return {"kind": record.kind, "version": record.version, "clusters": [], "jobs": [], **told}
