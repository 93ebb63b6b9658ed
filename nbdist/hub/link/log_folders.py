"""The folder of the ranks' logs; a new folder is begun when a log has grown large."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from typing import TYPE_CHECKING

from nbdist.errors import UsageError
from nbdist.machine import leftovers
from nbdist.settings import make_folder, no_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from nbdist.hub.link.ranks import Rank
    from nbdist.settings import Settings


class Logs:
    """The folders of a cluster's logs, which outlive it. Hub's thread.

    A rank's log never changes its file within a cell: where a job's output begins and ends in it
    is all that is known of a job, and all that is needed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._large = settings.log_megabytes * 1e6
        self._full: list[Path] = []
        """Folders that no next cell writes to; one that runs, or a thread it left, still may."""
        self.folder = self._new()

    def place(self, ranks: Collection[Rank], everyone: Iterable[Rank]) -> Path:
        """Return the folder for the next cell of these ranks, whose part of it begins here."""
        if any(rank.log_end > self._large and rank.logs == self.folder for rank in ranks):
            with contextlib.suppress(OSError, UsageError):  # no room: it goes on where it is
                new = self._new()
                self._full.append(self.folder)
                self.folder = new
        for rank in ranks:
            if rank.logs != self.folder:
                rank.logs, rank.log_end = self.folder, 0
            elif rank.log_end > (size := _size(self.folder / f"rank{rank.rank}.log")):
                rank.log_end = size  # somebody has cut it, to make room
        if self._full:
            self._let_go({rank.logs for rank in everyone})
        return self.folder

    def close(self) -> None:
        """Let all be cleared away that is old or too much; nobody writes any more."""
        self._full.append(self.folder)
        self._let_go(set())

    def _let_go(self, used: set[Path | None]) -> None:
        unused = [folder for folder in self._full if folder not in used]
        for folder in unused:
            self._full.remove(folder)
            with contextlib.suppress(OSError):  # somebody has cleared it away by hand
                leftovers.disown(folder)
        if unused:
            self._clear()

    def _new(self) -> Path:
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        folder = self._settings.home / "logs" / name
        make_folder(folder)
        try:
            leftovers.sign(folder)
        except OSError as err:
            shutil.rmtree(folder, ignore_errors=True)
            raise UsageError(no_place(err)) from err
        self._clear()
        return folder

    def _clear(self) -> None:
        settings = self._settings
        leftovers.clear_logs(settings.home / "logs", settings.log_days, settings.log_gigabytes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # cleared away: it begins anew
        return 0
