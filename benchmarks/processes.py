"""Every process that came of one start, found again however it was reparented."""

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
    """Processes that inherited an environment variable of ours; all end with the `with` block."""

    def __init__(self) -> None:
        self._value = uuid.uuid4().hex

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def environ(self) -> dict[str, str]:
        """The environment to start the first of them with."""
        return os.environ | {_MARK: self._value}

    def living(self) -> list[psutil.Process]:
        """All of them that live."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # gone meanwhile, or somebody else's
                if process.environ().get(_MARK) == self._value:
                    found.append(process)
        return found

    def end(self) -> None:
        """Kill all of them; peers leave engines, nannies and workers behind."""
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
        Whose.
    without
        Threads whose names begin so are left out.
    """
    found = 0
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # this thread has
                if not without or not (thread / "comm").read_text().startswith(without):
                    found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e9
