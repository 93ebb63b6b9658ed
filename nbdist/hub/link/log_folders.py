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
    """The log folders of a cluster, which outlive it. Hub's thread.

    A rank's log never changes its file within a cell: a job's output is a part of one file, from
    its beginning to its end there.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._large = settings.log_megabytes * 1e6
        self._full: list[Path] = []
        """Folders that later cells do not use; a running cell, or a thread it left, may still
        write."""
        self.folder = self._new()

    def place(self, ranks: Collection[Rank], everyone: Iterable[Rank]) -> Path:
        """Return the log folder for the next cell of these ranks; its output begins here."""
        if any(rank.log_end > self._large and rank.logs == self.folder for rank in ranks):
            with contextlib.suppress(OSError, UsageError):  # disk full: keep the present folder
                new = self._new()
                self._full.append(self.folder)
                self.folder = new
        for rank in ranks:
            if rank.logs != self.folder:
                rank.logs, rank.log_end = self.folder, 0
            elif rank.log_end > (size := log_size(self.folder / f"rank{rank.rank}.log")):
                rank.log_end = size  # the log was truncated to free space
        if self._full:
            self._let_go({rank.logs for rank in everyone})
        return self.folder

    def close(self) -> None:
        """Release the folders, so that old ones can be removed."""
        self._full.append(self.folder)
        self._let_go(set())

    def _let_go(self, used: set[Path]) -> None:
        unused = [folder for folder in self._full if folder not in used]
        for folder in unused:
            self._full.remove(folder)
            with contextlib.suppress(OSError):  # removed by hand
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


def log_size(path: Path) -> int:
    """Return the size of a log, 0 if it was removed or not begun."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
