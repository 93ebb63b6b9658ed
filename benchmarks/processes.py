"""Finds all processes that descend from one start, also those with a new parent."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from typing_extensions import Self

_MARK = "NBDIST_BENCHMARK"


class Family:
    """Processes that have inherited an environment variable; all end with the `with` block."""

    def __init__(self) -> None:
        self._value = uuid.uuid4().hex

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def environ(self) -> dict[str, str]:
        """The environment for the first process."""
        return os.environ | {_MARK: self._value}

    def living(self) -> list[psutil.Process]:
        """Return the living processes."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # it has ended, or belongs to another user
                if process.environ().get(_MARK) == self._value:
                    found.append(process)
        return found

    def end(self) -> None:
        """Kill all processes, as peers leave engines, nannies and workers behind."""
        while living := self.living():
            for process in living:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)


def processor_seconds(pid: int, *, without: str = "") -> float:
    """Return the processor time of a process's living threads, in Linux's own nanoseconds.

    Parameters
    ----------
    pid
        The process.
    without
        Threads whose names begin with this text are left out.
    """
    found = 0
    with suppress(OSError):  # the process has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                if not without or not (thread / "comm").read_text().startswith(without):
                    found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e9
