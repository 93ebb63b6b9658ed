"""What the processes of this user show of themselves: their files of state, read as they change.

The server's loop calls this; a look costs a `stat` for each file that has not changed.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.errors import UsageError
from nbdist.hub import record as records
from nbdist.hub.record import Record, Unreadable
from nbdist.lives import runs

if TYPE_CHECKING:
    from pathlib import Path

ALIVE_SECONDS = 1.0
"""How often a process is looked for."""
HIDDEN = {"control", "place"}, {"root", "folder"}, {"folder", "parts"}
"""What the page is not told of processes, clusters and jobs."""


class Entry:
    """One file of state."""

    def __init__(self, path: Path, key: tuple[float, int, int]) -> None:
        self.path, self.key = path, key
        self.record: Record | None = None
        self.unreadable: Unreadable | None = None
        self.alive = True
        self._looked_at = 0.0
        try:
            self.record = records.read(path)
        except records.BROKEN as err:
            self.unreadable = Unreadable(path.stem, str(err))
        self.shown = None if self.record is None else _shown(self.record)
        self.look()

    def look(self) -> bool:
        """Look for the process now and then; return whether it has gone since."""
        if self.record is None or time.monotonic() - self._looked_at < ALIVE_SECONDS:
            return False
        self._looked_at = time.monotonic()
        before, self.alive = self.alive, self.record.alive(self.path)
        return before != self.alive


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
            with contextlib.suppress(OSError):  # it has ended just now
                status = path.stat(follow_symlinks=False)
                key = status.st_mtime, status.st_size, status.st_ino
                entry = before.get(path.stem)
                if entry is None or entry.key != key:
                    beat = entry is not None and entry.key[1:] == key[1:]
                    entry = Entry(path, key)
                    changed |= not beat or entry.shown != before[path.stem].shown
                changed |= entry.look()
                found[path.stem] = entry
        self._entries = found
        changed |= before.keys() != self._entries.keys()
        changed |= self._drop_outdated()
        self.changes += changed
        return self.changes

    def _drop_outdated(self) -> bool:
        """Remove what nobody needs to see any more; return whether there was anything."""
        kernels = {e.record.kernel for e in self._entries.values() if e.record and e.alive}
        outdated = [entry for entry in self._entries.values() if _outdated(entry, kernels)]
        for entry in outdated:
            self.forget(entry)
        return bool(outdated)

    def forget(self, entry: Entry) -> None:
        """Remove a file of state whose process has gone."""
        self._entries.pop(entry.path.stem, None)
        self.changes += 1
        with contextlib.suppress(OSError):
            records.remove_left(entry.path, entry.record)

    def state(self) -> dict[str, Any]:
        """Return what the page shows."""
        entries = self._entries.values()
        return {
            "processes": [e.shown | {"alive": e.alive} for e in entries if e.shown is not None],
            "unreadable": [
                {"id": e.unreadable.id, "why": e.unreadable.why} for e in entries if e.unreadable
            ],
            "time": time.time(),
        }

    def find(self, id_: str) -> Entry:
        """Return what is known of a process that the page names.

        Raises
        ------
        UsageError
            If there is none any more.
        """
        self.look()
        self.record(id_)
        return self._entries[id_]

    def record(self, id_: str) -> Record:
        """Return what a process that the page names showed of itself at the last look.

        Raises
        ------
        UsageError
            If there is none any more.
        """
        entry = self._entries.get(id_)
        if entry is None or entry.record is None:
            raise UsageError("this process has ended")
        return entry.record

    def gone(self) -> list[Entry]:
        """Return those whose process has gone: crashed kernels, and keepers whose job is over.

        Not those of whose clusters something still runs: it can be stopped as long as it is shown.
        """
        self.look()
        return [entry for entry in self._entries.values() if not entry.alive and not _left(entry)]


def _left(entry: Entry) -> bool:
    """Whether ranks of a process that has gone may still run."""
    record = entry.record
    if record is None or not record.place.seen_from_here:
        return False  # silent for so long that its clusters are taken to be gone with it
    return any(runs(*cluster.root) for cluster in record.clusters)


def _paths() -> list[Path]:
    folder = records.folder()
    try:
        if folder.stat().st_uid != os.getuid():
            return []  # somebody else's, who could have put anything there
        return sorted(folder.glob("*.json"))
    except OSError:
        return []


def _outdated(entry: Entry, kernels: set[str]) -> bool:
    """Whether a process has gone and nobody needs to be told of it."""
    if entry.record is None or entry.alive:
        return False
    restarted = entry.record.kernel != "" and entry.record.kernel in kernels
    return restarted or records.outdated(entry.record, entry.path)


def _shown(record: Record) -> dict[str, Any]:
    told = msgspec.to_builtins(record, str_keys=True)
    clusters, jobs = told.get("clusters", []), told.get("jobs", [])
    for hidden, parts in zip(HIDDEN, ([told], clusters, jobs), strict=True):
        for part in parts:
            for name in hidden:
                part.pop(name, None)
    return {"kind": record.kind, "version": record.version, "clusters": [], "jobs": [], **told}
