"""Every process that came of one start, found again however it was reparented."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
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
